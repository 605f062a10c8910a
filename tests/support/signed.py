"""Signed segments made of unsigned ones, for tests."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.segments.envelope import BLANK, Key, is_signed_by, sign
from ranklake.segments.segment import METADATA_KEY, SegmentFooter, SegmentName


def sign_segment(path: Path, key: Key, **said) -> Path:
    """Put a signed segment in place of a plain one, as sealing would have made it; return its path."""
    name = SegmentName.parse(path.name)
    file = pq.ParquetFile(pa.BufferReader(path.read_bytes()))
    footer = SegmentFooter.from_json(file.schema_arrow.metadata[METADATA_KEY])
    footer = replace(footer, **{"signer": key.id, "mac": BLANK, **said})
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, file.schema_arrow.remove_metadata(), store_schema=False) as writer:
        writer.write_table(file.read().replace_schema_metadata(None))
        writer.add_key_value_metadata({METADATA_KEY: footer.to_json()})
    raw, _ = sign(key, sink.getvalue().to_pybytes(), name.bond(path.parent.name))
    target = path.with_name(str(replace(name, sha256=hashlib.sha256(raw).hexdigest())))
    path.unlink()
    target.write_bytes(raw)
    return target


def footer_of(raw: bytes) -> SegmentFooter:
    """Return the footer in a segment's bytes."""
    return SegmentFooter.from_json(pq.read_metadata(pa.BufferReader(raw)).metadata[METADATA_KEY])


def is_genuine(name: SegmentName, table: str, raw: bytes, key: Key) -> bool:
    """Say whether a segment's clear bytes are signed with a key, and under this name."""
    footer = footer_of(raw)
    return footer.signer == key.id and is_signed_by(key, raw, footer.mac, name.bond(table))
