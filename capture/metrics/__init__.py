"""Metrics: named values: scalars, counters, aggregates, histograms, and their sampling."""
