"""A synthetic training job, recorded through the real sealer, as data for benchmarks.

docs/synthetic-job.md describes the data.
"""
