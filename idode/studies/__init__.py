"""Studies of models: reports, comparisons of systems, ordinary image coders."""
