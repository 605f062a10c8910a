"""Samplers: read GPUs, the host and Prometheus pages at intervals, as rows."""
