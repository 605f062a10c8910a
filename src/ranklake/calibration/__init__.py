"""Calibration: an experiment whose truth is known, recorded and brought through the whole pipeline, and compared."""
