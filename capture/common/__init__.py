"""Common: what every part of capture stands on: values, settings, layouts of rows, counted gaps, the hot path in C."""
