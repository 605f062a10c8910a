"""Runs on a terminal: one line each."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from ranklake.lake.runs.asking import Row
from ranklake.lake.runs.said import Said
from ranklake.printable import printable
from ranklake.views.table import TextColumn, fitting
from ranklake.views.words import moment_text, number_text, or_dash, percent_text, time_text

MOST_TAGS: Final = 50
"""Of a run, where they are told together; `--json` has all."""
_MOST_LETTERS: Final = 200
_COLUMNS = (
    TextColumn("run"),
    TextColumn("status"),
    TextColumn("name"),
    TextColumn("steps", is_right=True),
    TextColumn("began"),
    TextColumn("took", is_right=True),
    TextColumn("loss", is_right=True),
    TextColumn("goodput", is_right=True),
    TextColumn("MFU", is_right=True),
    TextColumn("tokens/s", is_right=True),
    TextColumn("ranks", is_right=True),
    TextColumn("restarts", is_right=True),
    TextColumn("straggler", is_right=True),
    TextColumn("job"),
    TextColumn("tags"),
)


def run_table(rows: Sequence[Row], said: Mapping[str, Said], width: int | None) -> list[str]:
    """Return a line a run, worst or newest first as they come; unknown numbers are dashes, ``show`` has the reason."""
    if not rows:
        return ["no runs"]
    return fitting(_COLUMNS, [_cells(row, said[row["run"]]) for row in rows], width)


def tag_words(tags: Mapping[str, str | None], most: int = MOST_TAGS) -> list[str]:
    """Return tags with their values, each cut short; of many the first, and how many more there are."""
    words = [tag if value is None else f"{tag}={value}" for tag, value in itertools.islice(tags.items(), most)]
    more = [f"and {len(tags) - most:,} more"] if len(tags) > most else []
    return [*(one if len(one) <= _MOST_LETTERS else f"{one[:_MOST_LETTERS]}…" for one in words), *more]


def tag_text(tags: Mapping[str, str | None]) -> str:
    """Return the same in one line, for a terminal."""
    return printable(", ".join(tag_words(tags)))


def _cells(row: Row, said: Said) -> tuple[str, ...]:
    return (
        printable(row["run"]),
        row["status"],
        printable(said.name),
        or_dash(row["steps"], number_text(row["steps"])),
        moment_text(row["ts"]),
        time_text(row["wall_ns"] / 1e9),
        or_dash(row["last_loss"], number_text(row["last_loss"])),
        or_dash(row["goodput_ratio"], percent_text(row["goodput_ratio"])),
        or_dash(row["mfu_ratio"], percent_text(row["mfu_ratio"])),
        or_dash(row["tokens_per_s"], number_text(row["tokens_per_s"])),
        or_dash(row["world_size"], number_text(row["world_size"])),
        number_text(row["restarts"] or 0),
        or_dash(row["straggler_rank"], f"rank {row['straggler_rank']}"),
        printable(row["job"] or ""),
        tag_text(said.tags),
    )
