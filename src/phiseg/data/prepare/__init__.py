"""One file per source that a prepared dataset can be made from."""
