"""The prepared dataset: its files, its splits, and the stream of training batches."""
