"""The life of metrics: their states and successors, and series across renamed and converted metrics."""
