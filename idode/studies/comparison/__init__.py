"""Systems compared on equal terms: the same network, data, steps and seeds, in one table."""
