"""A synthetic training job, recorded through the real sealer: what the lake is measured with.

docs/scale.md says what is in it.
"""
