"""The kinds of steps of migrations. `KINDS` in `migration.py` lists them."""
