"""Replay: rebuilds partitions of a table from its segments or from its inputs."""
