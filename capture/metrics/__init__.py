"""Metrics: named values: scalars, counters, aggregates, histograms, and how many of them are kept."""
