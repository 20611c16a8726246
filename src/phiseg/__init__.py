"""PHiSeg: plausible expert segmentations of a medical image, as many as you like."""

__version__ = "0.1.0"
