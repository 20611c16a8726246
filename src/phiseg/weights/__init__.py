"""Models that come with phiseg, one folder each: `phiseg.load` and every command take them by name."""
