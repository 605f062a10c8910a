"""Service level objectives: files in OpenSLO v1 (`document`), their attainment (`evaluation`), and the table `slo`."""
