"""What phiseg costs, beside the plain way of doing the same: `python -m benchmarks`, or `make bench`."""
