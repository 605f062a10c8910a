"""Hostile objects for a spool: names, footers, Parquet bytes, packs and files of odd kinds, each from a seed.

A kind is a function of a `Case`; it puts what it likes below the spool. Each object is named for the case, so that what
the books say of it can be told from what they say of others.
"""

import hashlib
import json
import os
import random
import socket
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from segments import step_rows

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.segments.pack import pack
from ranklake.segments.segment import METADATA_KEY, SegmentFooter

ROWS = 12
DAY = "2026-03-01"
INCARNATION = 1_000_000


@dataclass(frozen=True)
class Case:
    """One case: its number and dice, the spool's folder, and the folder outside that nobody may touch."""

    number: int
    rng: random.Random
    spool: Path
    outside: Path

    @property
    def run(self) -> str:
        """The run that the objects of the case say they are of."""
        return f"fuzz-{self.number}"

    @property
    def incarnation(self) -> int:
        """A number that no other case has."""
        return INCARNATION + self.number

    def folder(self, table="steps") -> Path:
        """Return the folder of a table, made."""
        found = self.spool / "segments" / DAY / table
        found.mkdir(parents=True, exist_ok=True)
        return found

    def rows(self, count=ROWS) -> pa.Table:
        """Return sound rows of the case."""
        return step_rows(count, run=self.run, incarnation=self.incarnation)

    def footer(self, **facts) -> dict:
        """Return a sound footer as JSON values."""
        said = SegmentFooter("steps", 1, self.run, 0, 0, 1, self.incarnation, 0, rows=ROWS)
        return json.loads(said.to_json()) | facts

    def name(self, raw: bytes, rows=ROWS) -> str:
        """Return a sound name for bytes."""
        digest = hashlib.sha256(raw).hexdigest()
        return f"{self.run}~a0~r00000~{self.incarnation:016x}~000000~{rows}~{digest}.parquet"

    def put(self, raw: bytes, name: str | bytes | None = None, table="steps") -> None:
        """Write an object; a name that no file system takes is left out."""
        folder = os.fsencode(self.folder(table))
        named = os.fsencode(self.name(raw) if name is None else name)
        try:
            target = os.path.join(folder, named)  # noqa: PTH118 - names that are not UTF-8
            os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - likewise
            with open(target, "wb") as file:  # noqa: PTH123 - likewise
                file.write(raw)
        except (OSError, ValueError):
            return


def sealed(rows: pa.Table, footer: bytes | dict, **options) -> bytes:
    """Return Parquet bytes with a footer."""
    said = footer if isinstance(footer, bytes) else json.dumps(footer).encode()
    sink = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata({METADATA_KEY: said}), sink, **options)
    return sink.getvalue().to_pybytes()


def sound(case: Case) -> bytes:
    """Return the bytes of a sound segment."""
    return sealed(case.rows(), case.footer())


NUMBERS = (-1, 0, 1, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 2**70, 10**400, -(2**70), 1.5, 1e308, 10**15)
TEXTS = ("", "x", "\x00", "a\nb", "\x1b[31mred", "../../outside", "ünï", "\ud800", "٣", "x" * 100_000, "%2e%2e", "NULL")


def odd(rng: random.Random, depth=0) -> object:
    """Return a JSON value that is seldom meant."""
    choice = rng.randrange(9 if depth < 3 else 5)
    if choice == 0:
        return rng.choice(NUMBERS)
    if choice == 1:
        return rng.choice(TEXTS)
    if choice < 5:
        return rng.choice([None, True, False, float("nan"), float("inf"), rng.choice(NUMBERS)])
    if choice < 7:
        return [odd(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(TEXTS): odd(rng, depth + 1) for _ in range(rng.randrange(4))}


def nested(rng: random.Random, text='{"a":') -> bytes:
    """Return JSON nested deep."""
    levels = rng.choice([10, 200, 900, 5_000, 60_000])
    return (text * levels + "1" + ("}" if text[0] == "{" else "]") * levels).encode()


def footer_value(case: Case) -> None:
    """Put a footer whose values are of other types and ranges."""
    said = case.footer()
    for _ in range(case.rng.randint(1, 2)):
        said[case.rng.choice(sorted(said))] = odd(case.rng)
    case.put(sealed(case.rows(), said))


def footer_counts(case: Case) -> None:
    """Put a footer of the right types that lies about counts."""
    rng = case.rng
    said = case.footer()
    for key in rng.sample(["rows_before", "gaps_before", "gaps", "totals", "world_size", "final"], 2):
        number = rng.choice(NUMBERS)
        said[key] = {
            "gaps": {rng.choice(TEXTS): number},
            "totals": {
                rng.choice(["steps", "spans", "audit", "x", ""]): rng.choice([[number, 0], [number], [], number])
            },
            "final": rng.choice([True, False, 1]),
        }.get(key, number)
    case.put(sealed(case.rows(), said))


def footer_events(case: Case) -> None:
    """Put a closing segment of events, whose totals and attributes are odd."""
    rng = case.rng
    schema = arrow_schema(contract("events"), segment=True)
    attributes = rng.choice(
        ["{", "[]", "null", "", '{"a": NaN}', nested(rng).decode(), "\x00", json.dumps({"a": 10**400})]
    )
    row = dict.fromkeys(schema.names) | {"run": case.run, "attempt": 0, "rank": 0, "incarnation": case.incarnation}
    row |= {"segment": 0, "slot": 0, "ts": datetime(2026, 3, 1, tzinfo=UTC), "attributes": attributes}
    for field in schema:
        if not field.nullable and row[field.name] is None:
            row[field.name] = rng.choice(["run_end", "heartbeat", "rank_end", "rank_start", "x"])
    said = case.footer(table="events", rows=1, final=True, totals=rng.choice([{}, {"steps": odd(rng)}, odd(rng)]))
    raw = sealed(pa.Table.from_pylist([row], schema=schema), said)
    case.put(raw, case.name(raw, 1), "events")


def footer_text(case: Case) -> None:
    """Put a footer that is no object, or not JSON, or JSON without end."""
    rng, plain = case.rng, json.dumps(case.footer())
    said = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"[[1,2]]",
        b"\xff\xfe",
        nested(rng),
        nested(rng, "["),
        plain[: rng.randrange(len(plain))].encode(),
        (plain[:-1] + ',"rows":' + rng.choice(["1", "NaN", "1e400", "-1"]) + "}").encode(),
        (plain[:-1] + ',"x":' + nested(rng).decode() + "}").encode(),
        (plain[:-1] + ',"rows_before":' + "9" * rng.choice([20, 400, 5000]) + "}").encode(),
        plain.encode("utf-16"),
    ]
    case.put(sealed(case.rows(), rng.choice(said)))


def bytes_flipped(case: Case) -> None:
    """Put Parquet bytes some of which were changed: in pages, in the footer, at the ends; the digest is theirs."""
    rng = case.rng
    raw = bytearray(sound(case))
    tail = int.from_bytes(raw[-8:-4], "little") + 8
    begin, end = rng.choice([(0, len(raw) - tail), (len(raw) - tail, len(raw) - 8), (len(raw) - 12, len(raw)), (0, 8)])
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        raw[rng.randrange(max(begin, 0), end)] = rng.choice([0, 255, 128, 127, rng.randrange(256)])
    case.put(bytes(raw))


def bytes_cut(case: Case) -> None:
    """Put Parquet bytes that end too early, begin too late, or stand in the wrong order."""
    rng, raw = case.rng, sound(case)
    at = rng.randrange(len(raw))
    case.put(
        rng.choice([raw[:at], raw[at:], raw[at:] + raw[:at], raw[:at] + raw, raw + raw[at:], raw[:8], b"", raw * 2])
    )


def bytes_foreign(case: Case) -> None:
    """Put something else in place of Parquet."""
    html = b"<!DOCTYPE html><html><body>503 Service Unavailable</body></html>"
    arrow = pa.BufferOutputStream()
    with pa.ipc.new_file(arrow, case.rows().schema) as file:
        file.write_table(case.rows())
    choices = [html, b"PAR1", b"PAR1PAR1", b"PARE" * 9, b"\x1f\x8b" + b"0" * 40, b"PK\x03\x04" * 8]
    case.put(case.rng.choice([*choices, arrow.getvalue().to_pybytes(), case.rng.randbytes(500), b"\0" * 5000]))


def columns_odd(case: Case) -> None:
    """Put columns of other types, shapes, names and numbers than the contract's."""
    rng, rows = case.rng, case.rows()
    name = rng.choice(rows.column_names)
    place = rows.schema.get_field_index(name)
    values = [
        pa.array([[1, 2]] * ROWS),
        pa.array([{"a": 1}] * ROWS),
        pa.array([{"a": [{"b": "x"}]}] * ROWS),
        pa.array([[("k", 1)]] * ROWS, pa.map_(pa.string(), pa.int64())),
        pa.array([b"\xff\xfe"] * ROWS),
        pa.array(["9" * 400] * ROWS),
        pa.array([rng.choice([2**63 - 1, -(2**63)])] * ROWS),
        pa.array([float("nan")] * ROWS),
        pa.array([None] * ROWS, pa.null()),
        pa.array(["a"] * ROWS).dictionary_encode(),
        pa.array([10**30] * ROWS, pa.decimal128(38, 0)),
        pa.array([timedelta(days=1)] * ROWS),
        pa.array([True] * ROWS),
    ]
    chosen = rng.choice(values)
    kind = rng.randrange(5)
    if kind == 0:
        rows = rows.set_column(place, name, chosen)
    elif kind == 1:
        odd_name = rng.choice([*TEXTS[1:-1], "date", "refused", "refused_row", name])
        rows = rows.append_column(odd_name.encode("utf-8", "replace").decode(), chosen)  # Arrow names are UTF-8
    elif kind == 2:  # the third of five
        rows = rows.drop_columns([name])
    elif kind == 3:
        rows = rows.select(list(reversed(rows.column_names)))
    else:
        for index in range(rng.choice([40, 400])):
            rows = rows.append_column(f"extra_{index}", chosen)
    try:
        raw = sealed(rows, case.footer())
    except (pa.ArrowException, UnicodeEncodeError):
        raw = b"PAR1"
    case.put(raw)


def values_odd(case: Case) -> None:
    """Put rows of the contract's types whose values are out of range, or not those of the name."""
    rng, rows = case.rng, case.rows()
    name = rng.choice(rows.column_names)
    field = rows.schema.field(name)
    low, high = -(2**63), 2**63 - 1
    if pa.types.is_timestamp(field.type):
        far = [low + 1, high, 0, -1, int(4e15), int(3e18), low + 2**40]
        values = pa.array([rng.choice(far) for _ in range(ROWS)], pa.int64()).cast(field.type)
    elif pa.types.is_integer(field.type):
        info = np.iinfo(field.type.to_pandas_dtype())
        values = pa.array([int(rng.choice([info.min, info.max, 0, -1, 5])) for _ in range(ROWS)], field.type)
    elif pa.types.is_floating(field.type):
        values = pa.array([rng.choice([float("nan"), float("inf"), -1e38, 1e38, 0.0]) for _ in range(ROWS)], field.type)
    elif pa.types.is_string(field.type):
        texts = [text for text in TEXTS if "\ud800" not in text]
        values = pa.array([rng.choice(texts) for _ in range(ROWS)], field.type)
        if rng.random() < 0.3:
            raw = pa.array([b"\xff\xfe"] * ROWS, pa.binary())
            values = pa.Array.from_buffers(pa.string(), ROWS, raw.buffers())
    else:
        values = pa.nulls(ROWS, field.type)
    if rng.random() < 0.3:
        values = pa.nulls(ROWS, field.type)
    place = rows.schema.get_field_index(name)
    case.put(sealed(rows.set_column(place, pa.field(name, field.type), values), case.footer()))


def slots_repeated(case: Case) -> None:
    """Put slots that repeat within a segment, and cuts of one slot file that say different things."""
    rng = case.rng
    for _ in range(rng.randint(1, 3)):
        rows = case.rows()
        slots = pa.array([rng.choice([0, 1, 2**31 - 1, -1, slot]) for slot in range(ROWS)], pa.int32())
        rows = rows.set_column(rows.schema.get_field_index("slot"), rows.schema.field("slot"), slots)
        case.put(sealed(rows, case.footer(rows_before=rng.choice([0, 5, 10**15]))))


def dates_many(case: Case) -> None:
    """Put a row on each of many dates."""
    days = case.rng.choice([20, 100])
    rows = case.rows(days)
    times = [datetime(2026, 3, 1, tzinfo=UTC) - timedelta(days=day) for day in range(days)]
    field = rows.schema.field("ts")
    rows = rows.set_column(rows.schema.get_field_index("ts"), field, pa.array(times, field.type))
    raw = sealed(rows, case.footer(rows=days))
    case.put(raw, case.name(raw, days))


def groups_many(case: Case) -> None:
    """Put row groups of a row each, or pages of other encodings."""
    options = case.rng.choice(
        [
            {"row_group_size": 1},
            {"use_dictionary": False},
            {"compression": "gzip"},
            {"compression": "none"},
            {"data_page_version": "2.0"},
            {"version": "1.0"},
            {"write_statistics": False},
        ]
    )
    case.put(sealed(case.rows(), case.footer(), **options))


def names(case: Case) -> None:  # noqa: C901 - a table of damage, read from top to bottom
    """Put names of other spellings, of numbers out of range, and of no kind at all."""
    rng, raw = case.rng, sound(case)
    run, attempt, rank, incarnation, segment, rows, digest = case.name(raw).split("~")
    part = rng.randrange(10)
    if part == 0:
        rank = rng.choice(["r0", "r000000", "r999999999", "r٣", "r-1", "r0x1", "R00000", "r 0"])
    elif part == 1:
        attempt = rng.choice(["a00", "a999999999", "a2147483648", "a٣", "a-1", "A0", "a"])
    elif part == 2:
        incarnation = rng.choice(["f" * 16, "0" * 16, "8" + "0" * 15, "7" + "f" * 15, incarnation.upper(), "f" * 17])
    elif part == 3:
        segment = rng.choice(["0000000", "999999999", "-00001", "٣٣٣٣٣٣", "2147483648", "0"])
    elif part == 4:
        rows = rng.choice(["012", "9999999999", "0", "-1", "1e3", "٣", "2147483648", "99999999999999999999"])
    elif part == 5:
        digest = rng.choice(
            [digest.upper(), "0" * 64 + ".parquet", digest.replace(".parquet", ".0a0b0c0d.enc"), "x.parquet"]
        )
    elif part == 6:
        run = rng.choice([".", "..", "...", "%2e%2e", "~", "run\n", "\x1b[31m", "r" * 128, "r" * 129, "ünï", " "])
    name = f"{run}~{attempt}~{rank}~{incarnation}~{segment}~{rows}~{digest}"
    if part == 7:
        name = (
            rng.choice(["x.zip#0+10/steps/", "x.zip#9+99999999999/steps/", "1~1~1~" + "0" * 64 + ".zip#0+5/steps/"])
            + name
        )
    elif part == 8:
        case.put(
            raw, rng.choice([b"\xff\xfe.parquet", b"a\nb.parquet", b"-rf", b"*", b"~", b"\xc3\x28~" + name.encode()])
        )
        return
    elif part == 9:
        table = rng.choice(
            ["audit", "segments", "rejects", "Steps", "st eps", "packs", "..x", "a\nb", "\x1b[2J", "x" * 200]
        )
        case.put(raw, name, table)
        return
    case.put(raw, name)


def packs(case: Case) -> None:  # noqa: C901 - a table of damage, read from top to bottom
    """Put a pack of one sound and one mutated member, whose directory, name or bytes were changed."""
    rng, raw = case.rng, sound(case)
    other = sealed(
        step_rows(ROWS, run=case.run, incarnation=case.incarnation, segment=1), case.footer(segment=1, rows_before=ROWS)
    )
    second = case.name(other).replace("~000000~", "~000001~")
    where, whole = pack({f"segments/{DAY}/steps/{case.name(raw)}": raw, f"segments/{DAY}/steps/{second}": other})
    members, rows, size, digest = Path(where).name.split("~")
    data = bytearray(whole)
    kind = rng.randrange(7)
    directory = len(data) - int(size)
    if kind == 0:  # the directory
        for _ in range(rng.choice([1, 2, 8])):
            data[rng.randrange(directory, len(data))] = rng.randrange(256)
    elif kind == 1:  # the members
        for _ in range(rng.choice([1, 8])):
            data[rng.randrange(directory)] = rng.randrange(256)
    elif kind == 2:  # cut
        data = data[: rng.randrange(len(data))]
    elif kind == 3:  # the name
        number = rng.choice(["0", "1", "9999999", "3"])
        members, rows, size = rng.choice([(number, rows, size), (members, number, size), (members, rows, number)])
        size = rng.choice([size, "999999999", "1", "0", str(len(data))])
    elif kind == 4:  # members that overlap: both entries lead to the first
        entry = data.find(b"PK\x01\x02", data.find(b"PK\x01\x02") + 1)
        data[entry + 42 : entry + 46] = rng.choice([0, 1, len(data), 2**32 - 1]).to_bytes(4, "little")
    elif kind == 5:  # sizes
        entry = data.find(b"PK\x01\x02")
        for at in (20, 24):
            data[entry + at : entry + at + 4] = rng.choice([0, 1, 2**31, 2**32 - 1]).to_bytes(4, "little")
    else:
        sink = BytesIO()
        with zipfile.ZipFile(sink, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
            archive.comment = rng.choice([b"", b"PK\x05\x06" * 9])
            paths = [
                f"../../{case.outside.name}/canary",
                str(case.outside / "canary"),
                f"{DAY}/steps/../../../{case.name(raw)}",
                f"{DAY}/audit/{case.name(raw)}",
                f"{DAY}/steps/{case.name(raw).replace(f'{case.incarnation:016x}', 'f' * 16)}",
                f"{DAY}/steps/{case.name(raw).replace('r00000', 'r0')}",
                f"{DAY}/packs/{Path(where).name}",
                f"{DAY}/steps/{case.name(raw)}",
            ]
            for path in rng.sample(paths, 3):
                archive.writestr(path, raw)
        data = bytearray(sink.getvalue())
        members, size = "3", str(max(1, len(data) - sink.getvalue().find(b"PK\x01\x02")))
    if rng.random() < 0.7:
        digest = f"{hashlib.sha256(data).hexdigest()}.zip"
    case.put(bytes(data), f"{members}~{rows}~{size}~{digest}", "packs")


def files_odd(case: Case) -> None:
    """Put what is no regular file, or leads elsewhere."""
    rng, raw = case.rng, sound(case)
    target = case.folder() / case.name(raw)
    canary = case.outside / "canary"
    kind = rng.randrange(9)
    if kind == 0:
        target.symlink_to(canary)
    elif kind == 1:
        target.symlink_to(case.outside)
    elif kind == 2:
        target.symlink_to(target.name)
    elif kind == 3:
        os.mkfifo(target)
    elif kind == 4:
        (case.folder() / rng.choice([target.name, f"deep-{case.number}"]) / ("x/" * 20)).mkdir(parents=True)
    elif kind == 5:
        with socket.socket(socket.AF_UNIX) as listener:
            here = f"/proc/self/fd/{os.open(target.parent, os.O_RDONLY)}"
            listener.bind(f"{here}/{case.run}.parquet")
            os.close(int(here.rpartition("/")[2]))
    elif kind == 6:
        case.put(raw)
        target.chmod(0)
    elif kind == 7:
        case.put(raw)
        os.utime(target, (0, 2**33))  # no hard link: it is the very file, of whoever could make it
    else:
        day = case.spool / "segments" / f"2026-03-{case.rng.randint(40, 99)}"
        if not day.is_symlink():  # another case of this lake drew the same day
            day.symlink_to(case.outside)


def files_sparse(case: Case) -> None:
    """Put a file of a gigabyte of nothing."""
    target = case.folder() / case.name(b"")
    with target.open("wb") as file:
        file.truncate(case.rng.choice([2**20, 2**28, 2**30]))


def refused(case: Case) -> None:
    """Put an importer's refused rows whose columns are odd."""
    rng = case.rng
    text = rng.choice([None, "x", "a\nb: c", "\x1b[31m", nested(rng).decode()])
    rows = case.rows().append_column("refused", pa.array([text] * ROWS, pa.string()))
    if rng.random() < 0.7:
        rows = rows.append_column("refused_row", pa.array([text] * ROWS, pa.string()))
    gone = rng.sample([name for name in rows.column_names if name not in {"refused", "refused_row"}], 3)
    case.put(sealed(rows.drop_columns(gone), case.footer()))


KINDS = {
    "name": (names, 14),
    "footer value": (footer_value, 18),
    "footer counts": (footer_counts, 8),
    "footer text": (footer_text, 8),
    "closing events": (footer_events, 8),
    "bytes flipped": (bytes_flipped, 16),
    "bytes cut": (bytes_cut, 4),
    "bytes foreign": (bytes_foreign, 3),
    "columns": (columns_odd, 8),
    "values": (values_odd, 10),
    "slots": (slots_repeated, 4),
    "dates": (dates_many, 1),
    "row groups": (groups_many, 2),
    "refused rows": (refused, 3),
    "pack": (packs, 12),
    "odd file": (files_odd, 4),
    "sparse file": (files_sparse, 1),
}
"""What puts hostile objects, by name, and how often."""

_NOT_BESIDE_KILLS = {"sparse file", "dates"}
"""What takes long, so that little else would be killed."""


def poison(rng: random.Random, number: int, spool: Path, outside: Path) -> None:
    """Put one hostile object into a spool, beside what others put there."""
    kinds = {kind: put for kind, (put, _) in KINDS.items() if kind not in _NOT_BESIDE_KILLS}
    chosen = rng.choices(list(kinds), [KINDS[kind][1] for kind in kinds])[0]
    kinds[chosen](Case(number, random.Random(rng.random()), spool, outside))


def faults_of_others(faults: list[str]) -> list[str]:
    """Return what does not add up of streams that are no case's: a case's own lies are named, and that is all."""
    return [fault for fault in faults if "run fuzz-" not in fault and "more streams do not add up" not in fault]
