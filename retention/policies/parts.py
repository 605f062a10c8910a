"""Rows of a partition that a rule is about: by run, its labels, team and environment, by metric, by severity.

What the log says of a file is enough where all of its rows are of one run (and of one metric, and one severity); else
the few columns that rules tell rows apart by are read, with their dictionaries, and nothing else.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.arrow import value_codes
from ranklake.lake.contracts.load import contract as packaged
from ranklake.lake.tables.read import read, read_batches
from ranklake.retention.policies.model import (
    RUN_KEYS,
    SEVERITIES,
    Facts,
    Rule,
    is_glob,
    literal_beginning,
    table_facts,
)
from ranklake.retention.policies.order import Decision, decide

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables

_BATCH_ROWS: Final = 4_000_000
_FEW: Final = 1 << 22
"""Combinations that are counted in an array of as many places."""
_LEVELS: Final = 4
"""Numbers of OpenTelemetry's scale per severity."""
_WORDS: Final = {"warn": "warning", "critical": "fatal", "exception": "error", "notice": "info"}

Values = tuple[Any, ...]
"""What a row has in the columns by which rules tell rows apart."""
RunFacts = Mapping[str, Facts]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a file that are alike for all rules.

    Attributes
    ----------
    values
        What they have in the columns of `Parts.columns`.
    rows
        How many.
    """

    values: Values
    rows: int


class Parts:
    """The rules that are about rows of one table, and which rows those are.

    Attributes
    ----------
    rules
        All that can be about rows of the table.
    columns
        By which they tell rows apart; none where they are about all rows.
    """

    def __init__(
        self, lake: "Lake | None", contract: "Contract", rules: Sequence[Rule], holds: Sequence[Rule], runs: RunFacts
    ) -> None:
        self.lake, self.contract, self.runs = lake, contract, runs
        self.rules = tuple(rule for rule in rules if rule.may_match(contract))
        self.holds = tuple(rule for rule in holds if rule.may_match(contract))
        self._base = table_facts(contract)
        keys = {key for rule in (*self.rules, *self.holds) for key in rule.row_keys}
        self.columns = (
            *(["run"] if keys & RUN_KEYS else []),
            *(["metric"] if "metric" in keys else []),
            *(
                one
                for one in ("severity", "severity_number", "severity_text")
                if "severity" in keys and one in contract
            ),
        )
        self._decided: dict[Values, Decision] = {}

    def of_table(self) -> Decision:
        """Return what holds for rows that no rule tells apart."""
        return self.of((None,) * len(self.columns))

    def of(self, values: Values) -> Decision:
        """Return what is decided for rows with these values."""
        if values not in self._decided:
            self._decided[values] = decide(self.rules, self.facts(values), self.holds)
        return self._decided[values]

    def facts(self, values: Values) -> Facts:
        """Return what is known of rows with these values."""
        known = dict(zip(self.columns, values, strict=True))
        facts = dict(self._base)
        if known.get("run") is not None:
            facts |= self.runs.get(known["run"], {})
            facts["run"] = frozenset({known["run"]})
        if known.get("metric") is not None:
            facts["metric"] = frozenset({known["metric"]})
        level = severity_of(known.get("severity_number"), known.get("severity_text") or known.get("severity"))
        if level is not None:
            facts["severity"] = frozenset({level})
        return facts

    def periods(self) -> tuple[int, int | None]:
        """Return bounds of the periods that rows of the table can have; of None the longest has no end."""
        ages = [rule.delete_after_days for rule in self.rules if rule.deletes]
        ages += [one for rule in self.rules for one in (rule.minimum_days, rule.maximum_days) if one is not None]
        base = self.of_table().period_days
        numbers = [one for one in (*ages, base) if one is not None]
        endless = self.holds or base is None or None in ages
        return (min(numbers) if numbers else 0), (None if endless else max(numbers, default=None))

    def groups(
        self, files: pa.Table, goes: Callable[[Values], bool] | None = None
    ) -> Iterator[tuple[str, list[Group]]]:
        """Yield (path, groups of its rows) for some files: rows of `ranklake.lake.tables.live_files.files`.

        Given `goes`, files are skipped if the Delta log shows that no rule names a metric of theirs and none of their
        rows goes.
        """
        assert self.lake is not None
        for row in files.to_pylist():
            if goes is not None and not self._names_a_metric(row):
                of_all = self._of_log({**row, "null_count.metric": row["num_records"]})
                if of_all is not None and not goes(of_all):
                    continue
            alone = self._of_log(row)
            if alone is not None:
                yield row["path"], [Group(alone, row["num_records"])]
                continue
            counts: dict[Values, int] = defaultdict(int)
            file_rows = files.filter(pc.equal(files["path"], row["path"]))
            for batch in read_batches(
                self.lake.store, self.contract, file_rows, self.columns, batch_rows=_BATCH_ROWS, dictionaries=True
            ):
                codes, words = _row_codes(batch)
                for code, count in _count_codes(codes, words):
                    counts[_values(code, words)] += count
            yield row["path"], [Group(values, count) for values, count in counts.items()]

    def shares(self, live: pa.Table) -> Iterator[tuple[Values, date, int, float]]:
        """Yield values, date, rows and bytes of rows that are alike; the bytes of a file are shared out by rows."""
        known = {row["path"]: row for row in live.select(["path", "date", "num_records", "size_bytes"]).to_pylist()}
        if not self.columns:
            for row in known.values():
                yield (), row["date"], row["num_records"], row["size_bytes"]
            return
        for path, groups in self.groups(live):
            row = known[path]
            for group in groups:
                yield group.values, row["date"], group.rows, row["size_bytes"] * group.rows / max(row["num_records"], 1)

    def mask(self, rows: pa.Table, due: Callable[[Values], bool]) -> pa.Array:
        """Return true where a row goes; `due` says it of the values of `columns`."""
        nothing = pa.nulls(rows.num_rows, pa.string())  # a file lacks columns without values
        columns = {name: rows[name] if name in rows.column_names else nothing for name in self.columns}
        codes, words = _row_codes(pa.table(columns) if columns else rows.select([]))
        present, place = np.unique(codes, return_inverse=True)
        goes = np.array([bool(due(_values(int(code), words))) for code in present], dtype=bool)
        return pa.array(goes[place] if len(present) else np.zeros(0, bool))

    def _names_a_metric(self, row: Mapping[str, Any]) -> bool:
        """Whether a rule may name a metric between the least and the greatest of a file."""
        low, high = row.get("min.metric"), row.get("max.metric")
        if low is None or high is None:
            return True
        patterns = [pattern for rule in (*self.rules, *self.holds) for pattern in rule.where.get("metric", ())]
        beginnings = [(literal_beginning(pattern), is_glob(pattern)) for pattern in patterns]
        return any((low[: len(text)] if is_begun else low) <= text <= high for text, is_begun in beginnings)

    def _of_log(self, row: Mapping[str, Any]) -> Values | None:
        """Return what all rows of a file have, where the log says that it is one thing."""
        values: list[Any] = []
        for name in self.columns:
            low, high, nulls = (row.get(f"{side}.{name}") for side in ("min", "max", "null_count"))
            if nulls is not None and nulls == row["num_records"]:
                values.append(None)
            elif low is not None and low == high and nulls == 0:
                values.append(low)
            else:
                return None
        return tuple(values)


def severity_of(number: int | None, text: str | None) -> str | None:
    """Return a severity by its number on OpenTelemetry's scale, or else by its name; None if neither says one."""
    if number is not None and 1 <= number <= _LEVELS * len(SEVERITIES):
        return SEVERITIES[(number - 1) // _LEVELS]
    word = (text or "").strip().lower()
    word = _WORDS.get(word, word)
    return word if word in SEVERITIES else None


def run_facts(tables: "Tables", rules: Sequence[Rule]) -> RunFacts:
    """Return what the table ``runs`` says of runs; nothing where no rule asks."""
    if not any(key in RUN_KEYS - {"run"} for rule in rules for key in rule.row_keys):
        return {}
    return all_run_facts(tables)


def all_run_facts(tables: "Tables") -> dict[str, dict[str, frozenset[str]]]:
    """Return team, labels and environment of each run, of all its attempts together."""
    names = ["run", "team", "labels", "deployment_environment"]
    rows = read(tables, packaged("runs"), names).to_pylist()
    runs: dict[str, dict[str, frozenset[str]]] = {}
    for row in rows:
        facts = runs.setdefault(row["run"], {})
        for key, texts in facts_of(row["team"], _object(row["labels"]), row["deployment_environment"]).items():
            facts[key] = facts.get(key, frozenset()) | texts
    return runs


def facts_of(team: str | None, labels: Mapping[str, Any], environment: str | None = None) -> dict[str, frozenset[str]]:
    """Return the facts of a run with a team, labels and an environment, which a label may say, too.

    A tag is a label's ``name=value``, its name, or its value.
    """
    texts = {str(name): str(value) for name, value in labels.items()}
    environments = frozenset(one for one in (environment, texts.get("environment")) if one)
    tags = {one for name, value in texts.items() for one in (f"{name}={value}", name, value) if one}
    return {
        **({"team": frozenset({team})} if team else {}),
        **({"tag": frozenset(tags)} if tags else {}),
        **({"environment": environments} if environments else {}),
    }


def part_digest(groups: Mapping[str, Sequence[Group]]) -> str:
    """Return a digest of the rows of a partition that go: counts by values, independent of files."""
    counts: dict[str, int] = defaultdict(int)
    for file_groups in groups.values():
        for group in file_groups:
            counts[json.dumps(group.values)] += group.rows
    return hashlib.sha256(json.dumps(sorted(counts.items())).encode()).hexdigest()


def _object(text: str | None) -> Mapping[str, Any]:
    try:
        parsed = json.loads(text or "{}")
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _row_codes(rows: pa.Table) -> tuple[np.ndarray, list[list[Any]]]:
    """Return a number for each row that tells its values, and per column what the digits of that number stand for."""
    codes = np.zeros(rows.num_rows, np.int64)
    words: list[list[Any]] = []
    for name in rows.column_names:
        places, known = value_codes(rows[name])
        codes = codes * len(known) + places
        words.append(known)
    return codes, words


def _values(code: int, words: list[list[Any]]) -> Values:
    values = []
    for known in reversed(words):
        code, place = divmod(code, len(known))
        values.append(known[place])
    return tuple(reversed(values))


def _count_codes(codes: np.ndarray, words: list[list[Any]]) -> Iterator[tuple[int, int]]:
    """Yield each code and its count."""
    most = int(np.prod([len(known) for known in words], dtype=np.float64)) if words else 1
    if most <= _FEW:
        counts = np.bincount(codes, minlength=1)
        yield from ((int(code), int(counts[code])) for code in np.flatnonzero(counts))
    else:
        present, counts = np.unique(codes, return_counts=True)
        yield from zip(present.tolist(), counts.tolist(), strict=True)
