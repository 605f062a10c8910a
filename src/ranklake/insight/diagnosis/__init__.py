"""Why a run was slow: its steps simulated as they would have been, had some part of them gone as the rest did."""
