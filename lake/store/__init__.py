"""Where a lake lies: its store, its folders, and what can be wrong with reaching them."""
