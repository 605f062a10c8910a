"""Probes of ``ranklake doctor``, each with a time limit; the command shows their findings."""
