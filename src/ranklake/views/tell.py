"""What several commands have to tell people."""

from typing import TYPE_CHECKING

import click

from ranklake.printable import printable

if TYPE_CHECKING:  # the doctor tells, too, where no pipeline is installed
    from collections.abc import Iterable, Mapping
    from typing import Any

    from ranklake.lake.tables.live_files import Damage


def tell(*lines: object, err: bool = False) -> None:
    """Print each as one line, whatever it holds: names of folders and runs are somebody else's, and forge none."""
    for line in lines:
        click.echo(printable(str(line)), err=err)  # noqa: TID251 - printable already


def tell_damaged(damage: "Iterable[Damage]") -> None:
    """Name damaged data files on stderr, a line each."""
    tell(*(f"damaged: {one}" for one in damage), err=True)


def tell_broken(done: "Mapping[str, Any]") -> None:
    """Name sections and pages of the report that could not be made on stderr, a line each."""
    tell(*(f"report: {name} cannot be made: {why}" for name, why in done["broken"].items()), err=True)
