"""The catalog's pages, made from the contracts.

python -m ranklake.insight.catalog --write    write docs/catalog
python -m ranklake.insight.catalog --check    exit 1 if docs/catalog is not what --write would write
"""

import sys
from pathlib import Path
from typing import Final

import click

from ranklake.insight.catalog.catalog import pages, stale, write
from ranklake.lake.contracts import load_contracts, load_metrics

FOLDER: Final = Path("docs/catalog")


@click.command()
@click.option("--write", "writing", is_flag=True, help="Write the files.")
@click.option("--check", "checking", is_flag=True, help="Exit 1 if the files are out of date.")
@click.option("--folder", type=click.Path(path_type=Path), default=FOLDER, show_default=True, help="Where they are.")
def main(writing: bool, checking: bool, folder: Path) -> None:
    """Write or check the catalog's markdown."""
    if writing == checking:
        raise click.UsageError("give one of --write and --check")
    wanted = pages(load_contracts(), load_metrics())
    changed = write(wanted, folder) if writing else stale(wanted, folder)
    for name in changed:
        click.echo(f"{'wrote' if writing else 'out of date:'} {folder / name}")
    sys.exit(1 if checking and changed else 0)


if __name__ == "__main__":
    main()
