"""A synthetic training job, recorded through the real sealer, as data for benchmarks.

docs/synthetic-job.md says what is in it.
"""
