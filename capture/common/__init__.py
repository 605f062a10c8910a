"""Common: the basis of all other folders: values, settings, layouts of slots, counted gaps, the hot path in C."""
