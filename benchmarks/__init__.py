"""Speed and memory of phiseg, compared with a plain implementation: `python -m benchmarks`, or `make bench`."""
