"""AgentRun: the agent, which looks after all ranks of its machine."""
