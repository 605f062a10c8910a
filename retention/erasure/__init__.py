"""Erasing a person's data, or a run's: found, proposed, taken out, proven."""
