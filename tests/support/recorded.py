"""What a run left in its spool, read the way any Parquet reader would."""

import hashlib
import json
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.capture.spool.claims import FOLDER as CLAIMS
from ranklake.lake.contracts.arrow import conform
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.footer_columns import with_footer_columns
from ranklake.segments.segment import METADATA_KEY, SegmentFooter, SegmentName

KEY = ("incarnation", "segment", "slot")


@dataclass(frozen=True)
class Segment:
    """One file of the spool, checked: its name, its footer and its bytes agree."""

    table: str
    name: SegmentName
    footer: SegmentFooter
    rows: pa.Table


def segments(spool: Path, table: str = "*") -> list[Segment]:
    """Return the segments of a local spool, those in packs too, in the order of their names."""
    found = []
    for path, raw in sorted(_files(Path(spool), table)):
        name = SegmentName.parse(path.name)
        assert hashlib.sha256(raw).hexdigest() == name.sha256
        footer, whole = read_segment(raw)
        rows = conform(whole, contract(path.parent.name), segment=True)  # other columns left out are NULL
        said = (footer.run, footer.attempt, footer.rank, footer.incarnation, footer.segment, footer.rows)
        assert said == (name.run, name.attempt, name.rank, name.incarnation, name.segment, name.rows)
        assert rows.num_rows == name.rows
        assert footer.table == path.parent.name
        found.append(Segment(footer.table, name, footer, rows))
    return found


def read_segment(raw: bytes) -> tuple[SegmentFooter, pa.Table]:
    """Return a segment's footer, and its rows with what the footer says of them."""
    file = pq.ParquetFile(pa.BufferReader(raw), page_checksum_verification=True)
    footer = SegmentFooter.from_json(file.schema_arrow.metadata[METADATA_KEY])
    return footer, with_footer_columns(file.read(), [footer], [file.metadata.num_rows])


def _files(spool: Path, table: str) -> Iterator[tuple[PurePath, bytes]]:
    """Yield segments sent alone, and then those that unzipping all packs would give."""
    for path in spool.glob(f"segments/*/{table}/*.parquet"):
        yield PurePath(path.relative_to(spool / "segments")), path.read_bytes()
    for packed in spool.glob("segments/*/packs/*.zip"):
        with zipfile.ZipFile(packed) as archive:
            for member in archive.namelist():
                if PurePath(member).match(f"*/{table}/*.parquet"):
                    yield PurePath(member), archive.read(member)


def rows(spool: Path, table: str) -> list[dict]:
    """Return a table's rows, each key once, in the order of their times."""
    by_key = {}
    for segment in segments(spool, table):
        for row in segment.rows.to_pylist():
            by_key[tuple(row[name] for name in KEY)] = row
    return sorted(by_key.values(), key=lambda row: (row["ts"], row["segment"], row["slot"]))


def gaps(spool: Path) -> dict[str, dict[str, int]]:
    """Return the gaps that all footers of a spool count, by table and reason."""
    counts = defaultdict(lambda: defaultdict(int))
    for segment in {(s.table, s.name.incarnation, s.name.segment): s for s in segments(spool)}.values():
        for reason, count in segment.footer.gaps.items():
            counts[segment.table][reason] += count
    return {table: dict(reasons) for table, reasons in counts.items()}


def left_in(local: Path) -> list[Path]:
    """Return the files that streams left in a local spool; what the node remembers of runs stays there."""
    return [path for path in local.rglob("*") if path.is_file() and path.parent.name != CLAIMS]


def totals(spool: Path) -> dict[int, dict[str, list[int]]]:
    """Return what each incarnation says it recorded in its whole life."""
    return {s.name.incarnation: s.footer.totals for s in segments(spool, "events") if s.footer.totals}


def check_books(spool: Path) -> None:
    """Assert that rows and gaps of every incarnation are what its totals say, and that each table's segments follow."""
    found = {(s.table, s.name.incarnation, s.name.segment): s for s in segments(spool)}.values()
    for incarnation, said in totals(spool).items():
        for table, (row_count, gap_count) in said.items():
            mine = [s for s in found if s.table == table and s.name.incarnation == incarnation]
            assert sum(s.footer.rows for s in mine) == row_count, (table, said)
            assert sum(sum(s.footer.gaps.values()) for s in mine) == gap_count, (table, said)
            before = 0
            for s in sorted(mine, key=lambda s: (s.footer.rows_before, s.footer.rows)):
                assert s.footer.rows_before == before
                before += s.footer.rows


def attributes(row: dict) -> dict:
    """Return an event's attributes."""
    return json.loads(row["attributes"]) if row["attributes"] else {}
