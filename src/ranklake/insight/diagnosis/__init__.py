"""Why a run was slow: simulates its steps as if slow parts had been as fast as the others."""
