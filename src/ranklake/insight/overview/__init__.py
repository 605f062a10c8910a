"""Facts about the lake as a whole: catalog, pipeline, fleet, alerts, on-call."""
