"""A synthetic training job, recorded through the real sealer: what the lake is measured with.

docs/synthetic-job.md says what is in it.
"""
