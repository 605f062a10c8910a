"""Table: convert CSV, JSON lines and Parquet to rows of a contract by a mapping, in blocks of rows."""

import csv
import io
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ranklake.capture.common.arrays import Array, texts
from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.mapping import EPOCHS
from ranklake.capture.importers.source import SourceError
from ranklake.capture.importers.units import YEAR_2000_NS
from ranklake.capture.importers.values import Mask, column_values, finite, moments, passing
from ranklake.segments.segment import RUN_NAME

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.mapping import Mapping, Melt
    from ranklake.capture.importers.source import Source

_BLOCK_BYTES: Final = 8 << 20
_BLOCK_ROWS: Final = 65_536
_SHOWN_COLUMNS: Final = 64
_HISTORY: Final = "log_history"
_MULTILINE_OBJECT: Final = re.compile(rb"\s*\{\s*(?:\n|\"[^\"\n]*\"\s*:\s*[^\n]*,\s*\n)")
"""First lines of a JSON object that spans several lines."""
_MAX_DOCUMENT_BYTES: Final = 256 << 20

Moments = tuple[Array, Mask, Mask]
"""Times, ns since 1970; masks of missing and of invalid times."""
Owner = tuple[str | None, int, int]
"""Run (None: the import's), attempt and rank."""
Block = tuple[pa.Table, list[tuple[int | None, str, str]], Array]
"""Rows; line, reason and text of each line that is no row; and the rows' line numbers, from 1."""


def read(source: "Source", recording: "ImportedRun", mapping: "Mapping") -> None:
    """Import a file.

    Raises
    ------
    SourceError
        The file cannot be read as a table.
    MappingError
        It lacks a column that the mapping names.
    """
    head = source.head()
    if head.startswith(b"PAR1"):
        blocks = _parquet(source, mapping)
    elif head.lstrip().startswith(b"{"):
        blocks = _json_lines(source, mapping)
    else:
        blocks = _csv(source, mapping, head)
    if head.lstrip().startswith(b"[") and b"{" in head[:64]:
        hint = "write one object per line: jq -c '.[]' FILE"
        raise SourceError("is one JSON array", where=source.name, hint=hint)
    if mapping.melt is not None and (head.startswith(b"PAR1") or head.lstrip().startswith(b"{")):
        raise SourceError("is not CSV, and the mapping melts columns", where=source.name, hint="save it as CSV")
    table, number = mapping.contract.table, 0
    recording.has_run_row = recording.has_run_row and table != "runs"  # the file itself has the rows of `runs`
    if mapping.rank is None:
        recording.facts["world_size"] = None  # unknown without a column of ranks
    shift_ns: int | None = None
    for rows, misfits, lines in blocks:
        for line, reason, text in misfits:
            recording.refuse(table, reason, text, line)
        if rows.num_rows:
            molten = rows if mapping.melt is None else melt_rows(rows, mapping.melt)
            times = _times(mapping, molten)
            if shift_ns is None and (shift_ns := _unknown_start_ns(mapping, *times)):
                recording.labels["times"] = "of an unknown start, taken as 2000-01-01"
            times = times[0] + shift_ns, *times[1:]
            line_numbers = np.repeat(lines, molten.num_rows // rows.num_rows)
            _convert(molten, times, number, source, recording, mapping, line_numbers)
            number += molten.num_rows


def melt_rows(rows: pa.Table, melt: "Melt") -> pa.Table:
    """Unpivot columns: return, for each row and each column not in `melt.stay`, a row with column name and value.

    Columns in `melt.stay` are repeated.
    """
    names = [name for name in rows.column_names if name not in melt.stay]
    count, width = rows.num_rows, len(names)
    repeated = rows.select(list(melt.stay)).take(pa.array(np.repeat(np.arange(count), width)))
    values = pa.chunked_array([chunk for name in names for chunk in rows[name].chunks], pa.binary())
    molten = repeated.append_column(melt.name, texts(names * count).cast(pa.binary()))
    by_row = np.arange(count * width).reshape(width, count).T.ravel() if width else np.arange(0)
    return molten.append_column(melt.value, values.take(pa.array(by_row)))


def _convert(
    rows: pa.Table, moments_: Moments, first: int, source: "Source", recording: "ImportedRun", mapping: "Mapping",
    lines: Array,
) -> None:  # fmt: skip
    """Convert a block, add its rows to their runs, and refuse each row with a value that does not convert.

    `first` is the number of the block's first row, `lines` the line number of each row.
    """
    table, file = mapping.contract.table, {"stem": source.stem, "name": source.name}
    count = rows.num_rows
    selected = np.ones(count, bool)
    for item in mapping.filters:
        selected &= passing(item, rows)
    recording.left_out += count - int(selected.sum())
    problems: list[tuple[Mask, str]] = []
    times, missing, invalid = moments_
    problems += [(invalid, "time: not a time"), (missing & ~invalid, "time: missing")]
    owners, owner_problems = _owners(mapping, rows, file, first)
    problems += owner_problems
    columns, value_problems = _columns(mapping, rows, file, first)
    problems += value_problems
    if table == "runs":
        columns["labels"] = _add_labels(columns.get("labels", texts([None] * count)), recording.labels)
    if table == "scalars":  # rows without this metric: a file may have rows of several metrics
        without_value = ~np.any([mask for mask, _ in problems], axis=0)
        for name in ("value", "value_flag"):
            without_value &= columns[name].is_null().to_numpy(zero_copy_only=False) if name in columns else True
        recording.left_out += int((selected & without_value).sum())
        selected &= ~without_value
    valid = selected.copy()
    for mask, reason in problems:
        refused = np.flatnonzero(mask & valid)
        valid[refused] = False
        for index in refused.tolist():
            recording.refuse(table, reason, _quarantine_text(rows, index), int(lines[index]))
    by_attempt: dict[tuple[str | None, int], list[int]] = {}
    for index in np.flatnonzero(valid).tolist():
        by_attempt.setdefault(owners[index][:2], []).append(index)
    for (run, attempt), indices in sorted(by_attempt.items(), key=lambda item: (item[0][0] or "", item[0][1])):
        target = recording.recording_of(run or recording.run, attempt)
        ranks = np.array([owners[index][2] for index in indices], np.int64)
        target.world_size = max(target.world_size, int(ranks.max()) + 1)
        if len(indices) == count:
            target.batch(table, times, columns, ranks)
        else:
            rows_taken = pa.array(indices)
            taken_columns = {name: column.take(rows_taken) for name, column in columns.items()}
            target.batch(table, times[indices], taken_columns, ranks)


def _columns(
    mapping: "Mapping", rows: pa.Table, file: dict[str, str], first: int
) -> tuple[dict[str, pa.Array], list[tuple[Mask, str]]]:
    """Return the contract's columns, and for each problem of values a mask of the rows that have it, and its text."""
    columns: dict[str, pa.Array] = {}
    problems: list[tuple[Mask, str]] = []
    targets = [(rule, rule.target) for rule in mapping.rules if rule.target is not None]
    for rule, target in targets:
        columns[target.name], invalid, reason = column_values(rule, rows, file, first)
        problems.append((invalid, f"{target.name}: {reason}"))
    _flag_non_finite(mapping.contract.table, columns)
    for _, target in targets:
        if target.required:
            missing = columns[target.name].is_null().to_numpy(zero_copy_only=False)
            problems.append((missing, f"{target.name}: missing"))
    return columns, problems


def _flag_non_finite(table: str, columns: dict[str, pa.Array]) -> None:
    """Replace NaN and infinity by NULL, and add a column of flags if the table has one, as recorders do."""
    flags_of: dict[str, list[str | None]] = {}
    for name, column in columns.items():
        if pa.types.is_floating(column.type):
            columns[name], flags_of[name] = finite(column)
    if table == "steps":
        target = "non_finite"
        named = [[flag and f"{name}:{flag}" for flag in flags] for name, flags in flags_of.items() if any(flags)]
        words = [",".join(filter(None, row)) or None for row in zip(*named, strict=True)]
    else:
        target = "value_flag"
        words = flags_of.get("value", []) if table == "scalars" else []
    if any(words):
        column = texts(words)
        columns[target] = pc.coalesce(columns[target], column) if target in columns else column


def _owners(
    mapping: "Mapping", rows: pa.Table, file: dict[str, str], first: int
) -> tuple[list[Owner], list[tuple[Mask, str]]]:
    """Return the owner of each row, and for each problem of owners a mask of the rows that have it, and its text."""
    count = rows.num_rows
    problems: list[tuple[Mask, str]] = []
    owners: dict[str, list[Any]] = {"run": [None] * count, "attempt": [0] * count, "rank": [0] * count}
    for rule in mapping.owner_rules:
        assert rule.target is not None
        name = rule.target.name
        column, invalid, reason = column_values(rule, rows, file, first)
        values = owners[name] = column.to_pylist()
        missing = np.array([value is None or (name != "run" and value < 0) for value in values], bool)
        problems += [(invalid, f"{name}: {reason}"), (~invalid & missing, f"{name}: missing")]
        if name == "run":
            misnamed = np.array([value is not None and RUN_NAME.fullmatch(value) is None for value in values], bool)
            problems.append((~invalid & misnamed, "run: not a run's name"))
    return list(zip(*owners.values(), strict=True)), problems


def _add_labels(labels: pa.Array, import_labels: dict[str, str]) -> pa.Array:
    """Return labels of rows of ``runs`` as JSON, with the import's labels and a mark.

    The mark makes rollups prefer these rows, which a person wrote, to the row of the run's log.
    """
    encoded = labels.dictionary_encode() if labels.null_count < len(labels) else None
    base = import_labels | {"said": "by hand"}
    if encoded is None:
        return texts([_json(base)] * len(labels))
    words = [_json(base | _label_object(text)) for text in encoded.dictionary.to_pylist()]
    codes = encoded.indices.to_pylist()
    return texts([_json(base) if code is None else words[code] for code in codes])


def _label_object(text: str) -> dict[str, Any]:
    """Return the JSON object that `text` is, or one with `text` as the value of ``label``."""
    try:
        labels = json.loads(text)
    except (ValueError, RecursionError):
        labels = None
    return labels if isinstance(labels, dict) else {"label": text}


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _unknown_start_ns(mapping: "Mapping", times: Array, missing: Mask, invalid: Mask) -> int:
    """Return the start to add to times that are too small to count from 1970: the year 2000 in ns, otherwise 0."""
    valid = times[~missing & ~invalid]
    is_number = mapping.time.format in EPOCHS and mapping.time.column is not None
    return YEAR_2000_NS if is_number and len(valid) and valid.min() >= 0 and valid.max() < YEAR_2000_NS else 0


def _times(mapping: "Mapping", rows: pa.Table) -> Moments:
    rule = mapping.time
    if rule.column is not None:
        return moments(rule, rows[rule.column])
    constant = moments(rule, pa.chunked_array([texts([str(rule.value)])]))
    return tuple(np.repeat(part, rows.num_rows) for part in constant)  # type: ignore[return-value]


def _quarantine_text(rows: pa.Table, index: int) -> str:
    """Return a row as JSON text, with at most `_SHOWN_COLUMNS` columns."""
    row = rows.slice(index, 1).to_pylist()[0]
    shown = dict(list(row.items())[:_SHOWN_COLUMNS])
    return json.dumps(
        {name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in shown.items()},
        default=str, ensure_ascii=False,
    )  # fmt: skip


def _csv(source: "Source", mapping: "Mapping", head: bytes) -> Iterator[Block]:
    separator = mapping.separator or _separator(head)
    misfits: list[tuple[int | None, str, str]] = []
    last, skipped = 1, set()  # line numbers are right only without empty lines, and without line ends in quotes

    def misfit(row: Any) -> str:  # noqa: ANN401 - pyarrow's InvalidRow
        skipped.add(row.number)
        misfits.append((row.number, f"{row.actual_columns} fields instead of {row.expected_columns}", row.text or ""))
        return "skip"

    header = _header(head, separator)
    names, padded = mapping.strip_names(header)
    duplicates = {name for name in names if names.count(name) > 1}
    if duplicates:
        raise SourceError(f"column {min(duplicates)!r} appears twice", where=source.name, hint="rename one of them")
    mapping.check_columns(names, source.name)
    types = dict.fromkeys(header, pa.binary())
    try:
        reader = pacsv.open_csv(
            source.text_stream(),
            pacsv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            pacsv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=misfit),
            pacsv.ConvertOptions(column_types=types, check_utf8=False, strings_can_be_null=False),
        )
        for batch in reader:
            refused = misfits.copy()
            misfits.clear()
            lines = np.arange(last + 1, last + 1 + batch.num_rows + len(skipped))
            lines = lines[~np.isin(lines, list(skipped))][: batch.num_rows]
            last = int(lines[-1]) if len(lines) else last
            yield _strip_blanks(pa.table(batch).rename_columns(names), padded), refused, lines
    except pa.ArrowInvalid as error:
        flaw = "is too long" if "block size" in str(error) else "is not CSV"
        raise SourceError(f"a row {flaw}", where=source.name, hint="fix the file; reading stopped there") from error
    if misfits:
        yield pa.table({name: pa.array([], pa.binary()) for name in names}), misfits, np.arange(0)


def _strip_blanks(rows: pa.Table, padded: list[str]) -> pa.Table:
    """Strip blanks from the values of the columns in `padded`, whose names had blanks in the header."""
    for name in padded:
        values = [None if word is None else word.strip(b" \t") for word in rows[name].to_pylist()]
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(values, pa.binary()))
    return rows


def _header(head: bytes, separator: str) -> list[str]:
    first = head.decode(errors="replace").lstrip("\n\r")
    return next(csv.reader(io.StringIO(first, newline=None), delimiter=separator), [])


def _separator(head: bytes) -> str:
    first = head.partition(b"\n")[0].decode(errors="replace")
    return max(",\t;|", key=first.count)


def _json_lines(source: "Source", mapping: "Mapping") -> Iterator[Block]:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    misfits: list[tuple[int | None, str, str]] = []
    names = list(mapping.foreign_columns)
    seen: set[str] = set()

    def block() -> Block:
        columns = {name: texts([_json_text(row.get(name)) for row in rows]) for name in names}
        table = pa.table(columns) if rows else pa.table({name: texts([]) for name in names})
        refused, line_numbers = misfits.copy(), np.array(lines, np.int64)
        rows.clear()
        lines.clear()
        misfits.clear()
        return table, refused, line_numbers

    for number, row, flaw, text in _trainer_history(source) or _json_values(source):
        if isinstance(row, dict):
            seen.update(row)
            rows.append(row)
            lines.append(number)
        else:
            misfits.append((number, flaw or "not a JSON object", text))
        if len(rows) + len(misfits) >= _BLOCK_ROWS:
            mapping.check_columns(seen, source.name)
            yield block()
    if seen:
        mapping.check_columns(seen, source.name)
    yield block()


def _json_values(source: "Source") -> Iterator[tuple[int, Any, str | None, str]]:
    """Yield number, parsed value, flaw and text of each line that is not empty; the value is None if not JSON."""
    for line in source.lines():
        if line.flaw is None and not line.text.strip():
            continue
        try:
            row = json.loads(line.text) if line.flaw is None else None
        except (ValueError, RecursionError):
            row = None
        yield line.number, row, line.flaw, line.text


def _trainer_history(source: "Source") -> list[tuple[int, Any, str | None, str]] | None:
    """Return the entries of ``log_history`` if the file is one document of Hugging Face's Trainer.

    Returns None for JSON lines. Raises `SourceError` for any other JSON document.
    """
    with source.first_look():
        _, row, _, text = next(_json_values(source), (0, None, None, ""))
        if text.lstrip() and not isinstance(row, dict) and not _MULTILINE_OBJECT.match(source.head()):
            return None
        if isinstance(row, dict) and not isinstance(row.get(_HISTORY), list):
            return None
        try:
            document = json.loads(source.read_all(_MAX_DOCUMENT_BYTES))
        except (ValueError, RecursionError):
            if text.strip() != "{":
                return None
            document = None
    entries = document.get(_HISTORY) if isinstance(document, dict) else None
    if isinstance(entries, list):
        return [(number, entry, None, json.dumps(entry)) for number, entry in enumerate(entries, 1)]
    lists = [
        key
        for key, value in (document or {}).items()
        if isinstance(value, list) and isinstance(next(iter(value), 0), dict)
    ]
    command = f": jq -c '.[{json.dumps(lists[0])}][]' FILE > FILE.jsonl" if lists else ""
    hint = f"write one object per line{command}"
    raise SourceError("is one JSON document, not one object per line", where=source.name, hint=hint)


def _json_text(value: Any) -> str | None:  # noqa: ANN401 - JSON
    if value is None or isinstance(value, str):
        return None if value is None else value.encode(errors="replace").decode()
    return json.dumps(value)


def _parquet(source: "Source", mapping: "Mapping") -> Iterator[Block]:
    with source.fs.open(source.path, "rb") as raw:
        try:
            file = pq.ParquetFile(raw)
            names = file.schema_arrow.names
            mapping.check_columns(names, source.name)
            first = 1
            for batch in file.iter_batches(_BLOCK_ROWS, columns=list(mapping.foreign_columns), use_threads=False):
                source.progress(source.size_bytes * batch.num_rows // max(1, file.metadata.num_rows))
                yield pa.table(batch), [], np.arange(first, first + batch.num_rows)
                first += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise SourceError("not readable as Parquet", where=source.name, hint="fetch it again") from error


_MIN_RATIO: Final = 0.9


def _fills(lines: list[bytes]) -> bool:
    """Whether at least `_MIN_RATIO` of the lines have as many separators as the first."""
    separator = max((b",", b";", b"\t"), key=lines[0].count)
    return sum(line.count(separator) >= lines[0].count(separator) > 0 for line in lines) >= _MIN_RATIO * len(lines)


FORMAT: Final = Format(
    summary="CSV, JSON lines or Parquet, by a mapping",
    recognises="a header with separators, one JSON object per line, or Parquet",
    read=read,
    table="",  # the mapping's
    mark=re.compile(rb"\APAR1|\A\s*\{\s*\"[^\n]*\}\s*(?:\n|$)|^[^\n,;\t]*[,;\t][^\n]*\n", re.MULTILINE),
    maps=True,
    fills=_fills,
)
