"""The server of `phiseg serve`, which speaks the protocol of MONAI Label."""
