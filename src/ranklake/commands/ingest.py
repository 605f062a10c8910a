"""``ranklake ingest``."""

from dataclasses import replace

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import dask_option, json_option, lake_option, new_option, spool_option
from ranklake.context import Context
from ranklake.lake.ingest.run import ingest as run_ingest
from ranklake.lake.ingest.spool.gate import is_newer
from ranklake.segments.envelope import MissingKeyError
from ranklake.segments.keys import read_keyring
from ranklake.views.json_output import show_json
from ranklake.views.progress import progress_bar
from ranklake.views.tell import tell, tell_damaged


@click.command()
@lake_option
@spool_option
@dask_option
@click.option(
    "--keep-days",
    default=7,
    show_default=True,
    type=click.IntRange(min=0),
    help="Days to keep an ingested segment in the spool.",
)
@new_option
@json_option
@with_context
def ingest(context: Context, keep_days: int, *, is_new: bool, as_json: bool) -> int:
    """Bring new segments from the spool into the lake, exactly once.

    Creates the lake in an empty location. Run it as often as you like, from as many machines as you like: it never
    stores a row twice, and first finishes what an interrupted run left. Exits 1 if a segment could not be read, if
    encrypted segments wait for a key that is not available, or if files to be merged are damaged.
    """
    lake = replace(context, is_new=is_new).create_lake()
    with context.workers() as workers, progress_bar("ingest") as progress:
        done = run_ingest(lake, context.spool(), workers, keep_days=keep_days, progress=progress)
    if as_json:
        show_json(done)
    elif not done.plans:
        tell("nothing new in the spool; nothing committed")
    else:
        plans = f"plan {done.plans[0]}" if len(done.plans) == 1 else f"plans {done.plans[0]} to {done.plans[-1]}"
        tell(
            f"{plans}: {done.segments} segments, {done.rows_stored:,} rows stored, {done.rows_rejected:,} quarantined, "
            f"{done.rows_duplicate:,} seen before, in {done.elapsed_s:.1f} s"
        )
        if done.unreadable:
            why = "SELECT uri_name, unreadable FROM segments WHERE unreadable IS NOT NULL"
            tell(f'{done.unreadable} segments could not be read; see why: ranklake sql "{why}"')
        for reason, count in done.refused.items():
            tell(f"{count} of them refused: {reason}", err=True)
    for why, count in done.held.items():
        hint = "upgrade ranklake, or its contracts, to take them in; " if is_newer(why) else ""
        tell(f"{count} files of the spool left alone ({why}); {hint}the first: {done.held_first[why]}", err=True)
    for key_id, count in done.waiting.items():
        if key_id.startswith("of the prefix"):
            tell(f"{count} segments wait for the keys {key_id}", err=True)
            continue
        hint = "name its source by encryption_key under [capture] in ranklake.toml"
        tell(f"{count} segments wait for the key {key_id}; {_why(lake.config.encryption_key) or hint}", err=True)
    tell_damaged(done.damaged)
    is_unread = done.unreadable > sum(done.refused.values())
    return 1 if done.waiting or done.damaged or is_unread else 0


def _why(source: str) -> str:
    """Return what is wrong with a keyring as a whole; an empty text if nothing is."""
    try:
        if source:
            read_keyring(source)
    except MissingKeyError as error:
        return str(error)
    return "the keyring does not have it" if source else ""
