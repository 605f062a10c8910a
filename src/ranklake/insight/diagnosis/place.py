"""The coordinates of a run's ranks: one rank for each data-parallel rank and stage."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.insight.diagnosis.graph import WhatIfError
from ranklake.insight.diagnosis.spans import Ints, counted, integers

_MOST_RANKS: Final = 1_000_000


def place(rows: pa.Table) -> tuple[pa.Table, tuple[str, ...]]:
    """Return rows of spans with ``dp_rank`` and ``pp_rank`` filled, one rank for each pair of them; and notes.

    Of ranks that share a stage of a pipeline (tensor, context or expert parallel ones) the first stands for all: they
    go in lockstep. Where no coordinates are recorded, every rank is a data-parallel one.

    Raises
    ------
    WhatIfError
        Some coordinates are recorded, but not enough to tell the ranks apart.
    """
    notes = []
    rank, stage = integers(rows, "rank"), integers(rows, "pp_rank", 0)
    missing = rows["dp_rank"].null_count
    if missing == 0:
        dp = integers(rows, "dp_rank")
    elif missing < rows.num_rows:
        lacking = np.unique(rank[rows["dp_rank"].is_null().to_numpy()])
        hint = "give every rank its coordinates, run.coordinates(dp=…, pp=…)"
        raise WhatIfError(f"dp_rank is missing on {counted(len(lacking), 'rank')}", where="spans", hint=hint)
    elif rows["pp_rank"].null_count == rows.num_rows or not stage.any():
        dp = np.unique(rank, return_inverse=True)[1].astype(np.int64)
        notes.append("no coordinates are recorded: every rank is taken for a data-parallel one")
    elif len(np.unique(rank)) == len(np.unique(stage)):
        dp = np.zeros_like(rank)
    else:
        hint = "give every rank its coordinates, run.coordinates(dp=…, pp=…)"
        raise WhatIfError("stages are recorded, but no data-parallel ranks", where="spans", hint=hint)
    cell = dp * (int(stage.max(initial=0)) + 1) + stage
    first = _first_ranks(cell, rank)
    chosen = rank == first
    if not chosen.all():
        left = len(np.unique(rank[~chosen]))
        notes.append(
            f"{counted(left, 'rank')} left out: of those that share a stage and a data-parallel rank the first "
            "stands for all"
        )
    rows = rows.set_column(rows.schema.get_field_index("dp_rank"), "dp_rank", pa.array(dp))
    rows = rows.set_column(rows.schema.get_field_index("pp_rank"), "pp_rank", pa.array(stage))
    return (rows if chosen.all() else rows.filter(pc.equal(pa.array(chosen), pa.scalar(value=True)))), tuple(notes)


def _first_ranks(cell: Ints, rank: Ints) -> Ints:
    """Return for each row the lowest rank of its cell."""
    cells, place_of = np.unique(cell, return_inverse=True)
    lowest = np.full(len(cells), np.iinfo(np.int64).max)
    np.minimum.at(lowest, place_of, rank)
    found: Ints = lowest[place_of]
    return found


def rank_grid(dp_rank: Ints, stage: Ints, rank: Ints) -> Ints:
    """Return the global rank of each data-parallel rank and stage, (data-parallel ranks, stages).

    Raises
    ------
    WhatIfError
        No spans of some of them, though there are spans of later ones; or coordinates that no job has.
    """
    if (int(dp_rank.max()) + 1) * (int(stage.max()) + 1) > _MOST_RANKS:
        what = f"coordinates up to dp_rank {dp_rank.max():,} and pp_rank {stage.max():,} are more ranks than a job has"
        raise WhatIfError(what, where="spans", hint="give every rank its coordinates, run.coordinates(dp=…, pp=…)")
    ranks = np.full((int(dp_rank.max()) + 1, int(stage.max()) + 1), -1, np.int64)
    ranks[dp_rank, stage] = rank
    absent = np.argwhere(ranks < 0)
    if len(absent):
        named = ", ".join(f"data-parallel rank {dp}, stage {stage}" for dp, stage in absent[:3].tolist())
        more = "; …" if len(absent) > 3 else ""  # noqa: PLR2004 - as many as a line takes
        raise WhatIfError(
            f"no spans of {counted(len(absent), 'rank')} of {ranks.size} ({named}{more})",
            where="spans",
            hint="bring in what these ranks recorded",
        )
    return ranks
