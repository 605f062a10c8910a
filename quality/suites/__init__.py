"""Suites that users wrote for Great Expectations: read, then compiled to the shared scan or evaluated in a process."""
