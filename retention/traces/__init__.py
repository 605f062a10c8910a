"""Traces of a subject: where a value still is, in whatever form, whoever wrote it down."""
