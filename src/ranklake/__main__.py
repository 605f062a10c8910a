"""``python -m ranklake``."""

from ranklake.cli import main

main()
