"""The pipeline's own health: facts for metrics, ``/healthz``, the doctor and the pipeline page."""
