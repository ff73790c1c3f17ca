"""Evaluations of a data set in batches: run, stored, resumed and shared between processes."""
