"""Solvers for ordinary differential equations, divergences, and step grids."""
