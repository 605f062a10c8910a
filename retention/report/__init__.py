"""Facts of the governance and compliance pages."""
