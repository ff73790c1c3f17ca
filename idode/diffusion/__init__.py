"""The diffusion: schedules, clocks, what networks predict, and what training minimises."""
