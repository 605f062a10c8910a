"""Runs as people ask for them: found, reported and compared, by SQL that anybody can run."""
