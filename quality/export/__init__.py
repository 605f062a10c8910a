"""Export of suites and results as a project that Great Expectations opens."""
