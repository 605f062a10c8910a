"""Runs as people ask for them: found, told of and compared, by SQL that anybody can run."""
