"""A report on a run: one page with the paper's figures for this model, and the numbers."""
