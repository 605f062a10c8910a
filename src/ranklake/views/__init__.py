"""Views show facts, on a terminal, as JSON or HTML, and compute nothing."""
