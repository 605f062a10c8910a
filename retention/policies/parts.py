"""Groups of rows in a partition that rules treat alike: by run (labels, team, environment), metric and severity.

If all rows of a file have the same run, metric and severity, the statistics in the Delta log are enough. For other
files only the columns that rules select by are read.
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
_MOST_BINS: Final = 1 << 22
"""Most combinations of values that are counted by `numpy.bincount`, whose array has a place for each."""
_LEVELS: Final = 4
"""Numbers of OpenTelemetry's severity scale per name."""
_WORDS: Final = {"warn": "warning", "critical": "fatal", "exception": "error", "notice": "info"}

Values = tuple[Any, ...]
"""Values of a row in the columns that rules select by (`Parts.columns`)."""
RunFacts = Mapping[str, Facts]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a file with the same values in the columns that rules select by.

    Attributes
    ----------
    values
        Their values in the columns `Parts.columns`.
    rows
        Number of rows.
    """

    values: Values
    rows: int


class Parts:
    """The rules that can select rows of one table, and the decisions for groups of its rows.

    Attributes
    ----------
    rules
        All rules that can select rows of the table.
    columns
        Columns by which the rules distinguish rows; empty if they select all rows.
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
                name
                for name in ("severity", "severity_number", "severity_text")
                if "severity" in keys and name in contract
            ),
        )
        self._decided: dict[Values, Decision] = {}

    def of_table(self) -> Decision:
        """Return the decision for rows that no rule with a row selector matches."""
        return self.of((None,) * len(self.columns))

    def of(self, values: Values) -> Decision:
        """Return the decision for rows with these values."""
        if values not in self._decided:
            self._decided[values] = decide(self.rules, self.facts(values), self.holds)
        return self._decided[values]

    def facts(self, values: Values) -> Facts:
        """Return the facts of rows with these values."""
        row = dict(zip(self.columns, values, strict=True))
        facts = dict(self._base)
        if row.get("run") is not None:
            facts |= self.runs.get(row["run"], {})
            facts["run"] = frozenset({row["run"]})
        if row.get("metric") is not None:
            facts["metric"] = frozenset({row["metric"]})
        level = severity_of(row.get("severity_number"), row.get("severity_text") or row.get("severity"))
        if level is not None:
            facts["severity"] = frozenset({level})
        return facts

    def periods(self) -> tuple[int, int | None]:
        """Return the shortest and the longest period in days of the table's rows; None if the longest has no end."""
        ages = [rule.delete_after_days for rule in self.rules if rule.deletes]
        ages += [days for rule in self.rules for days in (rule.minimum_days, rule.maximum_days) if days is not None]
        base = self.of_table().period_days
        numbers = [days for days in (*ages, base) if days is not None]
        endless = self.holds or base is None or None in ages
        return (min(numbers) if numbers else 0), (None if endless else max(numbers, default=None))

    def groups(
        self, files: pa.Table, goes: Callable[[Values], bool] | None = None
    ) -> Iterator[tuple[str, list[Group]]]:
        """Yield path and groups of rows for each file; `files` are rows of `ranklake.lake.tables.live_files.files`.

        `goes` tells whether rows with some values are due. With it, a file is skipped if the Delta log shows that no
        rule names its metrics and that none of its rows is due.
        """
        assert self.lake is not None
        for row in files.to_pylist():
            if goes is not None and not self._names_a_metric(row):
                of_all = self._of_log({**row, "null_count.metric": row["num_records"]})
                if of_all is not None and not goes(of_all):
                    continue
            values = self._of_log(row)
            if values is not None:
                yield row["path"], [Group(values, row["num_records"])]
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
        """Yield values, date, rows and bytes of each group of rows. A group's bytes are in proportion to its rows."""
        files = {row["path"]: row for row in live.select(["path", "date", "num_records", "size_bytes"]).to_pylist()}
        if not self.columns:
            for row in files.values():
                yield (), row["date"], row["num_records"], row["size_bytes"]
            return
        for path, groups in self.groups(live):
            row = files[path]
            for group in groups:
                yield group.values, row["date"], group.rows, row["size_bytes"] * group.rows / max(row["num_records"], 1)

    def mask(self, rows: pa.Table, due: Callable[[Values], bool]) -> pa.Array:
        """Return a Boolean for each row: the result of `due` for the row's values in `columns`."""
        nulls = pa.nulls(rows.num_rows, pa.string())  # a file has no columns without values
        columns = {name: rows[name] if name in rows.column_names else nulls for name in self.columns}
        codes, words = _row_codes(pa.table(columns) if columns else rows.select([]))
        unique_codes, indices = np.unique(codes, return_inverse=True)
        goes = np.array([bool(due(_values(int(code), words))) for code in unique_codes], dtype=bool)
        return pa.array(goes[indices] if len(unique_codes) else np.zeros(0, bool))

    def _names_a_metric(self, row: Mapping[str, Any]) -> bool:
        """Whether a rule may select a metric between the least and the greatest metric of a file."""
        low, high = row.get("min.metric"), row.get("max.metric")
        if low is None or high is None:
            return True
        patterns = [pattern for rule in (*self.rules, *self.holds) for pattern in rule.where.get("metric", ())]
        prefixes = [(literal_beginning(pattern), is_glob(pattern)) for pattern in patterns]
        return any((low[: len(text)] if is_prefix else low) <= text <= high for text, is_prefix in prefixes)

    def _of_log(self, row: Mapping[str, Any]) -> Values | None:
        """Return the values that all rows of a file share, by the Delta log; None if the log does not show that."""
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
    """Return the name of a severity, from its OpenTelemetry number or else from its text; None if unknown."""
    if number is not None and 1 <= number <= _LEVELS * len(SEVERITIES):
        return SEVERITIES[(number - 1) // _LEVELS]
    word = (text or "").strip().lower()
    word = _WORDS.get(word, word)
    return word if word in SEVERITIES else None


def run_facts(tables: "Tables", rules: Sequence[Rule]) -> RunFacts:
    """Return the facts of runs from the table ``runs``; empty if no rule selects by them."""
    if not any(key in RUN_KEYS - {"run"} for rule in rules for key in rule.row_keys):
        return {}
    return all_run_facts(tables)


def all_run_facts(tables: "Tables") -> dict[str, dict[str, frozenset[str]]]:
    """Return team, labels and environment of each run, combined over all its attempts."""
    names = ["run", "team", "labels", "deployment_environment"]
    rows = read(tables, packaged("runs"), names).to_pylist()
    runs: dict[str, dict[str, frozenset[str]]] = {}
    for row in rows:
        facts = runs.setdefault(row["run"], {})
        for key, texts in facts_of(row["team"], _object(row["labels"]), row["deployment_environment"]).items():
            facts[key] = facts.get(key, frozenset()) | texts
    return runs


def facts_of(team: str | None, labels: Mapping[str, Any], environment: str | None = None) -> dict[str, frozenset[str]]:
    """Return the facts of a run with a team, labels and an environment.

    The environment may also be a label. Each label gives three tags: ``name=value``, its name, and its value.
    """
    texts = {str(name): str(value) for name, value in labels.items()}
    environments = frozenset(text for text in (environment, texts.get("environment")) if text)
    tags = {tag for name, value in texts.items() for tag in (f"{name}={value}", name, value) if tag}
    return {
        **({"team": frozenset({team})} if team else {}),
        **({"tag": frozenset(tags)} if tags else {}),
        **({"environment": environments} if environments else {}),
    }


def part_digest(groups: Mapping[str, Sequence[Group]]) -> str:
    """Return a digest of rows of a partition: their counts by values, independent of files."""
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
    """Return a number for each row that encodes its values, and the distinct values of each column.

    The digits of the number, one per column, are indices into the distinct values.
    """
    codes = np.zeros(rows.num_rows, np.int64)
    words: list[list[Any]] = []
    for name in rows.column_names:
        indices, column_words = value_codes(rows[name])
        codes = codes * len(column_words) + indices
        words.append(column_words)
    return codes, words


def _values(code: int, words: list[list[Any]]) -> Values:
    """Return the values that a number of `_row_codes` encodes."""
    values = []
    for column_words in reversed(words):
        code, index = divmod(code, len(column_words))
        values.append(column_words[index])
    return tuple(reversed(values))


def _count_codes(codes: np.ndarray, words: list[list[Any]]) -> Iterator[tuple[int, int]]:
    """Yield each code and its count."""
    combinations = int(np.prod([len(column_words) for column_words in words], dtype=np.float64)) if words else 1
    if combinations <= _MOST_BINS:
        counts = np.bincount(codes, minlength=1)
        yield from ((int(code), int(counts[code])) for code in np.flatnonzero(counts))
    else:
        unique_codes, counts = np.unique(codes, return_counts=True)
        yield from zip(unique_codes.tolist(), counts.tolist(), strict=True)
