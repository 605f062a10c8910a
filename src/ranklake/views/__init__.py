"""Views: how facts are shown, on a terminal or as JSON. They compute nothing, and what computes shows nothing."""
