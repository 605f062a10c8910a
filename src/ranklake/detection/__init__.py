"""Detection: what goes wrong in a series of numbers, and how a detector is declared. numpy only; knows no tables."""
