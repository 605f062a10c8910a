"""What rollups were computed from: the table ``lineage``, read once a round and written once a round.

For each output partition it keeps the digest of every input partition; a rollup is due where one differs.
Whole-run rollups keep theirs under the output partition "" (the whole table).

A round killed before it wrote lineage loses no more than time: what it committed says in its own commit what it was
computed from, so it is due again, comes out as it stands, and is written down then.
"""

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.plan import append_own
from ranklake.lake.rollups.inputs import ABSENT, Key, Snapshot
from ranklake.lake.store.reachability import unreachable
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import commit_info

if TYPE_CHECKING:
    from types import TracebackType

    from ranklake.lake.rollups.declaration import Rollup
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables

EVERY_S: Final = 30.0
"""A round that takes long writes about this often, since what it did not write down is computed again."""
_DIGEST_CHARS: Final = 16
_COLUMNS: Final = (
    *("output_table", "output_partition", "output_version"),
    *("input_table", "input_partition", "input_version", "input_fingerprint", "transform_sha256", "ts"),
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What lineage says of one input partition of one output partition: its digest, and by which code.

    Attributes
    ----------
    output_version, input_version
        Delta versions of both tables; None where lineage does not tell, or the input was never written.
    """

    digest: str
    transform_sha256: str
    output_version: int | None = None
    input_version: int | None = None


State = dict[str, dict[Key, Recorded]]
"""Output partition to what it was computed from."""


class Lineage:
    """Lineage as one round of rollups finds it, and what the round adds.

    As a context manager it writes at the end, after an error, too, for what was committed before; what then fails, too,
    is not reported.
    """

    def __init__(self, tables: "Tables") -> None:
        self._tables = tables
        self._news: list[dict[str, Any]] = []
        self._written_s = time.monotonic()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: "TracebackType | None"
    ) -> None:
        """Write what was noted."""
        if error is None:
            self.write()
        elif isinstance(error, Exception):
            with suppress(RanklakeError, OSError):
                self.write()

    def recorded(self, rollup: "Rollup", output: Snapshot) -> State:
        """Return the latest lineage of a rollup's output, as it was when the round began.

        Lineage of versions above the output's is of a table that is gone or was set back, and says nothing. Commits
        of the rollup above what lineage has were not written down: what they say of their inputs counts as changed.
        """
        rows = self._rows.filter(
            (pc.field("output_table") == rollup.name) & (pc.field("output_version") <= output.version)
        )
        state: State = defaultdict(dict)
        for row in newest_rows(rows).to_pylist():
            key = (row["input_table"], row["input_partition"])
            facts = (row["transform_sha256"], row["output_version"], row["input_version"])
            state[row["output_partition"]][key] = Recorded(row["input_fingerprint"], *facts)
        if not state:
            return {}
        for version in range(pc.max(rows["output_version"]).as_py() + 1, output.version + 1):
            for partition, key, latest in _of_commit(self._tables.store, rollup.name, version):
                state[partition][key] = latest
        return dict(state)

    def note(
        self, rollup: "Rollup", version: int, read_from: Mapping[str, Snapshot], state: Mapping[str, dict[Key, str]]
    ) -> None:
        """Keep in mind what output partitions were computed from, until it is written.

        Parameters
        ----------
        version
            Delta version of the output that holds the result; `ABSENT` if there was nothing to write.
        state
            Output partition to digest by input partition.
        """
        now = datetime.now(UTC)
        self._news += [
            {
                "output_table": rollup.name,
                "output_partition": output,
                "output_version": version,
                "input_table": table,
                "input_version": None if read_from[table].version == ABSENT else read_from[table].version,
                "input_fingerprint": digest,
                "transform": rollup.name,
                "transform_sha256": rollup.sha256,
                "ts": now,  # not when it is written: of two rounds that overlap the later commit counts
                "date": now.date(),
                "input_partition": name,
            }
            for output, inputs in state.items()
            for (table, name), digest in inputs.items()
        ]
        if time.monotonic() - self._written_s > EVERY_S:
            self.write()

    def write(self) -> None:
        """Append what was noted, in one commit. If this fails, all of it is computed once more, to the same result."""
        if self._news:
            append_own(self._tables, "lineage", lambda _: self._news)
        self._news, self._written_s = [], time.monotonic()

    @cached_property
    def _rows(self) -> pa.Table:
        return read(self._tables, contract("lineage"), _COLUMNS)


def newest_rows(rows: pa.Table) -> pa.Table:
    """Return the last row of each input partition of an output partition: each minute of a date adds one."""
    keys = ["output_partition", "input_table", "input_partition"]
    places = rows.select([*keys, "ts"]).append_column("place", pa.array(np.arange(rows.num_rows))).sort_by("ts")
    last = places.group_by(keys, use_threads=False).aggregate([("place", "last")])
    return rows.take(last["place_last"])


def commit_metadata(rollup: "Rollup", state: Mapping[str, dict[Key, str]]) -> dict[str, str]:
    """Return what a commit of a rollup says of itself: which input partitions each output partition came from."""
    inputs = {
        output: {f"{table}/{name}": digest[:_DIGEST_CHARS] for (table, name), digest in found.items()}
        for output, found in state.items()
    }
    return {"rollup": rollup.name, "transform_sha256": rollup.sha256, "inputs": json.dumps(inputs)}


def _of_commit(store: "Store", table: str, version: int) -> Iterator[tuple[str, Key, Recorded]]:
    """Yield (output partition, input partition, what is told of it) of a commit; nothing where it tells nothing.

    Of a digest the beginning is reported, which is like no whole one.
    """
    try:
        info = commit_info(store, table, version)
        inputs, sha256 = json.loads(info["inputs"]), info["transform_sha256"]
        for output, digests in inputs.items():
            for source, digest in digests.items():
                name, _, partition = source.partition("/")
                yield output, (name, partition), Recorded(digest, sha256, version)
    except FileNotFoundError:  # older commits went with a checkpoint
        return
    except OSError as error:
        raise unreachable(store.uri, error, store.storage) from None
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError):  # another's commit
        return
