"""Suites that users wrote for Great Expectations: read, compiled to the shared scan, or put to its own engine."""
