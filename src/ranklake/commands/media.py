"""``ranklake media``: list the media of a run, or write one to a file."""

from pathlib import Path

import click

from ranklake.capture.assets.image_file import image_file
from ranklake.capture.common.values import BadValueError
from ranklake.commands.completion import complete_runs
from ranklake.commands.context import noted_role_of, with_context
from ranklake.commands.options import json_option, lake_option, role_option
from ranklake.commands.writing import write_whole
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.find import find_run
from ranklake.insight.runs.media import Medium, media_names, medium
from ranklake.printable import counted
from ranklake.terminal import width
from ranklake.views.json_output import show_json
from ranklake.views.run import media_lines
from ranklake.views.tell import tell
from ranklake.views.words import size_text


@click.command()
@click.argument("run", shell_complete=complete_runs)
@click.argument("name", required=False)
@click.option("--step", type=int, metavar="N", help="Step.  [default: the latest]")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="Of which rank.")
@click.option("--output", "--out", "-o", "output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="File to write; required for an image, other media are printed by default.")  # fmt: skip
@role_option
@json_option
@lake_option
@with_context
def media(
    context: Context, run: str, name: str | None, *, step: int | None, rank: int | None, output: Path | None,
    role: str | None, as_json: bool,
) -> None:  # fmt: skip
    """List the images, tables, confusion matrices and texts of RUN, or write the one called NAME.

    Tables and matrices are JSON. With --json and -o, the file holds it, and facts about it are printed.
    """
    lake = context.open_lake()
    ask = asking(lake, noted_role_of(context, lake, role))
    whole = find_run(ask, run)
    if name is None:
        if step is not None or rank is not None or output is not None:
            raise RanklakeError(
                "--step, --rank and -o are about one medium", hint=f"name it: ranklake media {run} NAME"
            )
        result = media_names(ask, whole).seen()
        if as_json:
            show_json({"run": whole, "media": result.rows, "sql": result.sql})
        else:
            tell(*(media_lines(result, width()) or ["none recorded"]))
        return
    _write(medium(ask, whole, name, step, rank), output, as_json=as_json)


def _write(medium: Medium, output: Path | None, *, as_json: bool) -> None:
    if output is not None:
        if medium.kind == "image":
            _refuse_disguised(medium)
        write_whole(output, medium.raw)
    elif medium.kind == "image" and not as_json:
        hint = f"name a file with -o, ending in .{medium.media_type.rpartition('/')[2] or 'png'}"
        raise RanklakeError(f"{medium.name} is an image", hint=hint)
    if as_json:
        about = {name: getattr(medium, name) for name in ("run", "name", "kind", "media_type", "attempt", "rank")}
        counts = {"step": medium.step, "ts": medium.ts, "bytes": len(medium.raw), "others": medium.others}
        show_json({**about, **counts, "sql": medium.sql, "file": None if output is None else str(output)})
    elif output is None:
        tell(*medium.raw.decode().split("\n"))
    else:
        at = "outside of steps" if medium.step is None else f"step {medium.step:,}"
        message = f"{medium.kind.replace('_', ' ')} {medium.name}, {at}, rank {medium.rank}"
        tell(f"{message}, {size_text(len(medium.raw))}: {output}")
    if medium.others:
        tell(f"the latest; {counted(medium.others, 'other')} of that name: --step and --rank choose", err=True)


def _refuse_disguised(medium: Medium) -> None:
    """Raise `RanklakeError` for an image that is really a page or drawing with scripts, or a decompression bomb."""
    try:
        image_file(medium.raw)
    except BadValueError as error:
        raise RanklakeError(
            f"what is stored is no image to be shown: {error}", where=f"medium {medium.name!r}"
        ) from None
