"""`python -m ranklake.lake.catalog`."""

from ranklake.lake.catalog.command import main

main()
