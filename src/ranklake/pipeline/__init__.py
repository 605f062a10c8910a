"""The services that pipeline stages call, with or without Prefect."""
