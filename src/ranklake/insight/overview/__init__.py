"""The lake as a whole: what is in its catalog, and how its pipeline keeps up."""
