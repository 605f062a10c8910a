"""Checks the packaged migrations.

python -m ranklake.lake.migrations      exit 1 if a version has no migration, or a migration does not lead to it
"""

import sys

import click

from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.migrations.registry import problems


@click.command()
def main() -> None:
    """Check the packaged migrations, and print all problems."""
    faults = list(problems(load_contracts()))
    for problem in faults:
        click.echo(problem, err=True)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
