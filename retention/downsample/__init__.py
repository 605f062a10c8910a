"""Downsampling: rows that are old enough become interval aggregates and histograms, and go."""
