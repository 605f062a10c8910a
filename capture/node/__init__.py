"""Node: the agent, which recovers, uploads and samples for all ranks of its node."""
