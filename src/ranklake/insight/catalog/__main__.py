"""`python -m ranklake.insight.catalog`."""

from ranklake.insight.catalog.command import main

main()
