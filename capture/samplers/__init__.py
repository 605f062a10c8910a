"""Samplers: what hardware, host and other exporters say of themselves, read on an interval into rows."""
