"""Detection: algorithms that find faults in series of numbers, and declarations of detectors. numpy only; no tables."""
