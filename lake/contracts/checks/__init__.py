"""Check kinds: the rules that contracts can have. `kinds/` defines them, `registry` finds them."""
