"""Likelihoods: from pixels to log-densities and bounds on bits per dimension."""
