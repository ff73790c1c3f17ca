"""Unusual samples: statistics of a diffusion model, their density on known samples, p-values.

``score`` and ``calibrate`` have the functions for users, ``statistics`` what the network is asked,
``combination`` how many statistics become one score, ``conformal`` the p-values.
"""
