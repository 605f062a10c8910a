"""What several commands have to tell people."""

from collections.abc import Iterable

import click

from ranklake.lake.integrity import Damage


def tell_damaged(found: Iterable[Damage]) -> None:
    """Name damaged data files on stderr, a line each."""
    for one in found:
        click.echo(f"damaged: {one}", err=True)
