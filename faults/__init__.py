"""The fault campaign: what phiseg survives, tried out. `make faults` runs it; no part of the installed package."""
