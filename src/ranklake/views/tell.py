"""Messages and progress bars of commands."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ranklake.printable import printable

if TYPE_CHECKING:  # the doctor prints messages even if the pipeline is not installed
    from collections.abc import Iterable, Mapping
    from typing import Any

    from ranklake.lake.tables.live_files import Damage


def tell(*lines: object, err: bool = False) -> None:
    """Print each message as one line, with control characters escaped: names in it are untrusted."""
    for line in lines:
        click.echo(printable(str(line)), err=err)  # noqa: TID251 - printable already


def tell_damaged(damage: "Iterable[Damage]") -> None:
    """Print damaged data files on stderr, one per line."""
    tell(*(f"damaged: {one}" for one in damage), err=True)


def tell_broken(done: "Mapping[str, Any]") -> None:
    """Print sections and pages of the report that could not be made on stderr, one per line."""
    tell(*(f"report: {name} cannot be made: {reason}" for name, reason in done["broken"].items()), err=True)


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callable taking (done, total), or None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
