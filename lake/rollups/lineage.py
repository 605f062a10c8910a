"""Lineage: the inputs from which rollups were computed, in the table ``lineage``.

For each output partition, lineage has the digest of every input partition. A rollup is due if a digest differs. Rollups
of whole runs have their lineage under the output partition "" (the whole table).

A round of rollups reads lineage once and writes it once. If it is killed before it writes lineage, no result is lost:
each commit of a rollup contains its inputs, too. Its partitions are computed again in the next round, with the same
result, and lineage is written then.
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
"""Seconds between writes in a long round, since partitions without lineage are computed again after a kill."""
_DIGEST_CHARS: Final = 16
_COLUMNS: Final = (
    *("output_table", "output_partition", "output_version"),
    *("input_table", "input_partition", "input_version", "input_fingerprint", "transform_sha256", "ts"),
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Lineage of one input partition of one output partition.

    Attributes
    ----------
    digest, transform_sha256
        Digests of the input partition, and of the rollup's code and settings.
    output_version, input_version
        Delta versions of both tables; None if lineage does not have them, or if the input was never written.
    """

    digest: str
    transform_sha256: str
    output_version: int | None = None
    input_version: int | None = None


State = dict[str, dict[Key, Recorded]]
"""Lineage of a rollup, by output partition and input partition."""


class Lineage:
    """Lineage at the start of a round of rollups, and the rows that the round adds.

    As a context manager, it writes the new rows at the end. After an error, it writes those of earlier commits, and a
    second error is not reported.
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
        """Write the new rows."""
        if error is None:
            self.write()
        elif isinstance(error, Exception):
            with suppress(RanklakeError, OSError):
                self.write()

    def recorded(self, rollup: "Rollup", output: Snapshot) -> State:
        """Return the latest lineage of a rollup's output, at the start of the round.

        Rows with a version above the output's are ignored: the table was deleted or restored since. For commits of the
        rollup without rows in lineage, the inputs in the commit are returned, and count as changed.
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
        """Add the inputs of output partitions. They are written later.

        Parameters
        ----------
        version
            Delta version of the output with the result; `ABSENT` if there was nothing to write.
        read_from
            Input tables by name.
        state
            Digests by output partition and input partition.
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
                "ts": now,  # time of the commit, not of writing: of two concurrent rounds the later commit counts
                "date": now.date(),
                "input_partition": name,
            }
            for output, inputs in state.items()
            for (table, name), digest in inputs.items()
        ]
        if time.monotonic() - self._written_s > EVERY_S:
            self.write()

    def write(self) -> None:
        """Append the new rows in one commit. If this fails, the partitions are computed again, with the same result."""
        if self._news:
            append_own(self._tables, "lineage", lambda _: self._news)
        self._news, self._written_s = [], time.monotonic()

    @cached_property
    def _rows(self) -> pa.Table:
        return read(self._tables, contract("lineage"), _COLUMNS)


def newest_rows(rows: pa.Table) -> pa.Table:
    """Return the latest row of each pair of output and input partition. Each computation of a date adds rows."""
    keys = ["output_partition", "input_table", "input_partition"]
    places = rows.select([*keys, "ts"]).append_column("place", pa.array(np.arange(rows.num_rows))).sort_by("ts")
    last = places.group_by(keys, use_threads=False).aggregate([("place", "last")])
    return rows.take(last["place_last"])


def commit_metadata(rollup: "Rollup", state: Mapping[str, dict[Key, str]]) -> dict[str, str]:
    """Return the metadata of a rollup's commit: the input partitions of each output partition, with digests."""
    inputs = {
        output: {f"{table}/{name}": digest[:_DIGEST_CHARS] for (table, name), digest in found.items()}
        for output, found in state.items()
    }
    return {"rollup": rollup.name, "transform_sha256": rollup.sha256, "inputs": json.dumps(inputs)}


def _of_commit(store: "Store", table: str, version: int) -> Iterator[tuple[str, Key, Recorded]]:
    """Yield output partition, input partition and lineage from the metadata of a commit; nothing without metadata.

    The digests are truncated, so they differ from any current digest.
    """
    try:
        info = commit_info(store, table, version)
        inputs, sha256 = json.loads(info["inputs"]), info["transform_sha256"]
        for output, digests in inputs.items():
            for source, digest in digests.items():
                name, _, partition = source.partition("/")
                yield output, (name, partition), Recorded(digest, sha256, version)
    except FileNotFoundError:  # older commits were removed after a checkpoint
        return
    except OSError as error:
        raise unreachable(store.uri, error, store.storage) from None
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError):  # another's commit
        return
