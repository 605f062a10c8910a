"""Playbooks: what operators want done about incidents; read, matched, tested, and carried out once."""
