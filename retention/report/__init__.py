"""What a governance team looks at: policies against what is stored; what is due, waits, is held, went or was erased."""
