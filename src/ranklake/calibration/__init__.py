"""Calibration: compares an experiment of known truth with its telemetry after the whole pipeline."""
