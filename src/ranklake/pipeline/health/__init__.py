"""The pipeline's own health as facts: what metrics, ``/healthz``, the doctor and the pipeline page are drawn from."""
