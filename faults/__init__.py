"""Fault tests of phiseg, run by `make faults`. Not part of the installed package."""
