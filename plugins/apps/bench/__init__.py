"""`run: bench`: offline workloads, their speed, and the share of what the machine could do."""
