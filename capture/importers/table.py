"""Tables: CSV, JSON lines and Parquet become rows of a contract, block by block, by a mapping."""

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
_SPREAD: Final = re.compile(rb"\s*\{\s*(?:\n|\"[^\"\n]*\"\s*:\s*[^\n]*,\s*\n)")
"""The beginning of a JSON object that is spread over lines."""
_MOST_DOCUMENT_BYTES: Final = 256 << 20

Moments = tuple[Array, Mask, Mask]
"""Times, ns since 1970; which are absent; which are none."""
Owner = tuple[str | None, int, int]
"""Run (None: the one of the import), attempt and rank."""
Block = tuple[pa.Table, list[tuple[int | None, str, str]], Array]
"""Rows; what of the file was no row: line, reason, text; and the rows' lines, from 1."""


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
        hint = "give an object a line: jq -c '.[]' FILE"
        raise SourceError("is one JSON array", where=source.name, hint=hint)
    if mapping.melt is not None and (head.startswith(b"PAR1") or head.lstrip().startswith(b"{")):
        raise SourceError("is not CSV, and the mapping melts columns", where=source.name, hint="give it as CSV")
    table, number = mapping.contract.table, 0
    recording.has_run_row = recording.has_run_row and table != "runs"  # its own rows say what is known of the run
    if mapping.rank is None:
        recording.facts["world_size"] = None  # how many ranks a run has, no table without ranks tells
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
            places = np.repeat(lines, molten.num_rows // rows.num_rows)
            _convert(molten, times, number, source, recording, mapping, places)
            number += molten.num_rows


def melt_rows(rows: pa.Table, melt: "Melt") -> pa.Table:
    """Return a row for each row and column, except for the columns that stay: with the column's name, and its value."""
    names = [name for name in rows.column_names if name not in melt.stay]
    count, width = rows.num_rows, len(names)
    kept = rows.select(list(melt.stay)).take(pa.array(np.repeat(np.arange(count), width)))
    values = pa.chunked_array([chunk for name in names for chunk in rows[name].chunks], pa.binary())
    molten = kept.append_column(melt.name, texts(names * count).cast(pa.binary()))
    by_row = np.arange(count * width).reshape(width, count).T.ravel() if width else np.arange(0)
    return molten.append_column(melt.value, values.take(pa.array(by_row)))


def _convert(
    rows: pa.Table, moments_: Moments, first: int, source: "Source", recording: "ImportedRun", mapping: "Mapping",
    lines: Array,
) -> None:  # fmt: skip
    """Hand over a block's rows; those of which any value does not convert are refused whole.

    `lines` says where in the file each stands.
    """
    table, file = mapping.contract.table, {"stem": source.stem, "name": source.name}
    count = rows.num_rows
    wanted = np.ones(count, bool)
    for item in mapping.filters:
        wanted &= passing(item, rows)
    recording.left_out += count - int(wanted.sum())
    reasons: list[tuple[Mask, str]] = []
    times, absent, bad = moments_
    reasons += [(bad, "time: a time that is none"), (absent & ~bad, "time: there is none")]
    owners, wrong_owners = _owners(mapping, rows, file, first)
    reasons += wrong_owners
    columns, wrong_values = _columns(mapping, rows, file, first)
    reasons += wrong_values
    if table == "runs":
        columns["labels"] = _marked_labels(columns.get("labels", texts([None] * count)), recording.labels)
    if table == "scalars":  # rows of other metrics, side by side in one file
        without = ~np.any([bad for bad, _ in reasons], axis=0)
        for name in ("value", "value_flag"):
            without &= columns[name].is_null().to_numpy(zero_copy_only=False) if name in columns else True
        recording.left_out += int((wanted & without).sum())
        wanted &= ~without
    good = wanted.copy()
    for wrong, why in reasons:
        here = np.flatnonzero(wrong & good)
        good[here] = False
        for at in here.tolist():
            recording.refuse(table, why, _quarantine_text(rows, at), int(lines[at]))
    places: dict[tuple[str | None, int], list[int]] = {}
    for at in np.flatnonzero(good).tolist():
        places.setdefault(owners[at][:2], []).append(at)
    for run, attempt in sorted(places, key=lambda key: (key[0] or "", key[1])):
        mine = places[run, attempt]
        own = recording.recording_of(run or recording.run, attempt)
        ranks = np.array([owners[at][2] for at in mine], np.int64)
        own.world_size = max(own.world_size, int(ranks.max()) + 1)
        if len(mine) == count:
            own.batch(table, times, columns, ranks)
        else:
            chosen = pa.array(mine)
            own.batch(table, times[mine], {name: column.take(chosen) for name, column in columns.items()}, ranks)


def _columns(
    mapping: "Mapping", rows: pa.Table, file: dict[str, str], first: int
) -> tuple[dict[str, pa.Array], list[tuple[Mask, str]]]:
    """Return the contract's columns, and which rows lack a value or have one that does not convert, with the reason."""
    columns: dict[str, pa.Array] = {}
    reasons: list[tuple[Mask, str]] = []
    targets = [(rule, rule.target) for rule in mapping.rules if rule.target is not None]
    for rule, target in targets:
        columns[target.name], bad, why = column_values(rule, rows, file, first)
        reasons.append((bad, f"{target.name}: {why}"))
    _flag(mapping.contract.table, columns)
    for _, target in targets:
        if target.required:
            empty = columns[target.name].is_null().to_numpy(zero_copy_only=False)
            reasons.append((empty, f"{target.name}: there is none"))
    return columns, reasons


def _flag(table: str, columns: dict[str, pa.Array]) -> None:
    """Make NULL what is no finite number; say in the row what it was, as recorded rows do, if the table has a place."""
    flagged: dict[str, list[str | None]] = {}
    for name, column in columns.items():
        if pa.types.is_floating(column.type):
            columns[name], flagged[name] = finite(column)
    if table == "steps":
        target = "non_finite"
        named = [[flag and f"{name}:{flag}" for flag in flags] for name, flags in flagged.items() if any(flags)]
        words = [",".join(filter(None, row)) or None for row in zip(*named, strict=True)]
    else:
        target = "value_flag"
        words = flagged.get("value", []) if table == "scalars" else []
    if any(words):
        own = texts(words)
        columns[target] = pc.coalesce(columns[target], own) if target in columns else own


def _owners(
    mapping: "Mapping", rows: pa.Table, file: dict[str, str], first: int
) -> tuple[list[Owner], list[tuple[Mask, str]]]:
    """Return whose each row is, and which rows do not say so, with the reason."""
    count = rows.num_rows
    reasons: list[tuple[Mask, str]] = []
    owners: dict[str, list[Any]] = {"run": [None] * count, "attempt": [0] * count, "rank": [0] * count}
    for rule in mapping.owner_rules:
        assert rule.target is not None
        name = rule.target.name
        column, bad, why = column_values(rule, rows, file, first)
        values = owners[name] = column.to_pylist()
        none = np.array([value is None or (name != "run" and value < 0) for value in values], bool)
        reasons += [(bad, f"{name}: {why}"), (~bad & none, f"{name}: there is none")]
        if name == "run":
            odd = np.array([value is not None and RUN_NAME.fullmatch(value) is None for value in values], bool)
            reasons.append((~bad & odd, "run: not a run's name"))
    return list(zip(*owners.values(), strict=True)), reasons


def _marked_labels(given: pa.Array, own: dict[str, str]) -> pa.Array:
    """Return labels of rows of ``runs``, marked: what somebody says of a run goes before what its log says."""
    known = given.dictionary_encode() if given.null_count < len(given) else None
    mark = own | {"said": "by hand"}
    if known is None:
        return texts([_json(mark)] * len(given))
    words = [_json(mark | _object(text)) for text in known.dictionary.to_pylist()]
    codes = known.indices.to_pylist()
    return texts([_json(mark) if code is None else words[code] for code in codes])


def _object(text: str) -> dict[str, Any]:
    try:
        labels = json.loads(text)
    except (ValueError, RecursionError):
        labels = None
    return labels if isinstance(labels, dict) else {"label": text}


def _json(of: dict[str, Any]) -> str:
    return json.dumps(of, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _unknown_start_ns(mapping: "Mapping", times: Array, absent: Mask, bad: Mask) -> int:
    """Return what to add to numbers that are no times since 1970, such as epochs of training, to count from 2000."""
    known = times[~absent & ~bad]
    is_number = mapping.time.format in EPOCHS and mapping.time.column is not None
    return YEAR_2000_NS if is_number and len(known) and known.min() >= 0 and known.max() < YEAR_2000_NS else 0


def _times(mapping: "Mapping", rows: pa.Table) -> Moments:
    rule = mapping.time
    if rule.column is not None:
        return moments(rule, rows[rule.column])
    given = texts([str(rule.value)])
    times, absent, bad = moments(rule, pa.chunked_array([given]))
    return tuple(np.repeat(part, rows.num_rows) for part in (times, absent, bad))  # type: ignore[return-value]


def _quarantine_text(rows: pa.Table, at: int) -> str:
    """Return a row as text for quarantine."""
    row = rows.slice(at, 1).to_pylist()[0]
    shown = dict(list(row.items())[:_SHOWN_COLUMNS])
    return json.dumps(
        {name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in shown.items()},
        default=str, ensure_ascii=False,
    )  # fmt: skip


def _csv(source: "Source", mapping: "Mapping", head: bytes) -> Iterator[Block]:
    separator = mapping.separator or _separator(head)
    misfits: list[tuple[int | None, str, str]] = []
    last, skipped = 1, set()  # of a file without empty lines, and without line ends in quotes

    def misfit(row: Any) -> str:  # noqa: ANN401 - pyarrow's InvalidRow
        skipped.add(row.number)
        misfits.append((row.number, f"{row.actual_columns} fields instead of {row.expected_columns}", row.text or ""))
        return "skip"

    header = _header(head, separator)
    names, padded = mapping.strip_names(header)
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise SourceError(f"column {min(twice)!r} appears twice", where=source.name, hint="give each a name of its own")
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
            places = np.arange(last + 1, last + 1 + batch.num_rows + len(skipped))
            places = places[~np.isin(places, list(skipped))][: batch.num_rows]
            last = int(places[-1]) if len(places) else last
            yield _strip_blanks(pa.table(batch).rename_columns(names), padded), refused, places
    except pa.ArrowInvalid as error:
        flaw = "is too long" if "block size" in str(error) else "is not CSV"
        raise SourceError(
            f"a row {flaw}", where=source.name, hint="fix the file; nothing more of it was read"
        ) from error
    if misfits:
        yield pa.table({name: pa.array([], pa.binary()) for name in names}), misfits, np.arange(0)


def _strip_blanks(rows: pa.Table, padded: list[str]) -> pa.Table:
    """Return rows whose values have no blanks around them in the columns whose name has."""
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
        columns = {name: texts([_word(row.get(name)) for row in rows]) for name in names}
        table = pa.table(columns) if rows else pa.table({name: texts([]) for name in names})
        refused, places = misfits.copy(), np.array(lines, np.int64)
        rows.clear()
        lines.clear()
        misfits.clear()
        return table, refused, places

    for number, row, flaw, text in _document(source) or _objects(source):
        if isinstance(row, dict):
            seen.update(row)
            rows.append(row)
            lines.append(number)
        else:
            misfits.append((number, flaw or "no JSON object", text))
        if len(rows) + len(misfits) >= _BLOCK_ROWS:
            mapping.check_columns(seen, source.name)
            yield block()
    if seen:
        mapping.check_columns(seen, source.name)
    yield block()


def _objects(source: "Source") -> Iterator[tuple[int, Any, str | None, str]]:
    """Yield number, value, flaw and text of each line that is not empty."""
    for line in source.lines():
        if line.flaw is None and not line.text.strip():
            continue
        try:
            row = json.loads(line.text) if line.flaw is None else None
        except (ValueError, RecursionError):
            row = None
        yield line.number, row, line.flaw, line.text


def _document(source: "Source") -> list[tuple[int, Any, str | None, str]] | None:
    """Return the entries of a document's log_history, which Hugging Face's Trainer keeps; None for an object a line.

    Raises `SourceError` for another document, which is no row and has none that are known.
    """
    with source.first_look():
        _, row, _, text = next(_objects(source), (0, None, None, ""))
        if text.lstrip() and not isinstance(row, dict) and not _SPREAD.match(source.head()):
            return None
        if isinstance(row, dict) and not isinstance(row.get(_HISTORY), list):
            return None
        try:
            document = json.loads(source.read_all(_MOST_DOCUMENT_BYTES))
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
    how = f": jq -c '.[{json.dumps(lists[0])}][]' FILE > FILE.jsonl" if lists else ""
    hint = f"give an object a line{how}"
    raise SourceError("is one JSON document, not an object a line", where=source.name, hint=hint)


def _word(value: Any) -> str | None:  # noqa: ANN401 - JSON
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


_MOSTLY: Final = 0.9


def _fills(lines: list[bytes]) -> bool:
    """Whether nearly all lines have the first one's separators."""
    mark = max((b",", b";", b"\t"), key=lines[0].count)
    return sum(line.count(mark) >= lines[0].count(mark) > 0 for line in lines) >= _MOSTLY * len(lines)


FORMAT: Final = Format(
    summary="CSV, JSON lines or Parquet, by a mapping",
    recognises="a header with separators, a JSON object a line, or Parquet",
    read=read,
    table="",  # the mapping's
    mark=re.compile(rb"\APAR1|\A\s*\{\s*\"[^\n]*\}\s*(?:\n|$)|^[^\n,;\t]*[,;\t][^\n]*\n", re.MULTILINE),
    maps=True,
    fills=_fills,
)
