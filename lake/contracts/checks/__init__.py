"""Check kinds: what a contract may promise of its rows, one module a kind in `kinds/`, found by `registry`."""
