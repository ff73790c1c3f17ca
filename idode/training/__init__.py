"""Training: from a configuration and data to a run folder, on one process or many."""
