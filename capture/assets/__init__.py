"""Assets: datasets, checkpoints and other files, by their digests."""
