"""``ranklake up``: a Prefect server and a worker as children of one process, all deployments served."""
