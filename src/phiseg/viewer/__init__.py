"""The viewer: a local page on which one clicks a lesion and sees what experts would have drawn."""
