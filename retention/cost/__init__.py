"""What storage costs: who grows by how much, what that comes to, and which change of the policies would mend it."""
