"""Lists released migrations, or checks them.

python -m ranklake.lake.migrations            list migrations as released that are not yet
python -m ranklake.lake.migrations --check    exit 1 for a version without its migration, or an edited one
"""

import sys

import click

from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.migrations.registry import problems, release


@click.command()
@click.option("--check", is_flag=True, help="Compare only; exit 1 if a migration is missing or was edited.")
def main(check: bool) -> None:
    """Release the migrations that are there, or check them."""
    if not check:
        for label in release():
            click.echo(f"released {label}")
    found = list(problems(load_contracts()))
    for problem in found:
        click.echo(problem, err=True)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
