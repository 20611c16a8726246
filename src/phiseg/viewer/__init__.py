"""The viewer: a local web page on which a click on a lesion shows plausible segmentations."""
