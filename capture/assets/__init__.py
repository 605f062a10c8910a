"""Assets: records datasets, checkpoints and other files of a run with their digests, and media with their bytes."""
