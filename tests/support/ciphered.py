"""Keys, and encrypted segments made of plain ones, for tests."""

import base64
import hashlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.segments.envelope import Key, decrypt, encrypt
from ranklake.segments.segment import METADATA_KEY, SegmentFooter, SegmentName

ONE, TWO, THREE = (Key(bytes([number]) * 32) for number in (1, 2, 3))


def ring(*keys: Key) -> str:
    """Return a keyring's text."""
    return "".join(f"{base64.b64encode(key.secret).decode()}\n" for key in keys)


def source_of(path: Path, *keys: Key) -> str:
    """Write a keyring into a file, and return the source that names it."""
    path.write_text("# for tests\n" + ring(*keys))
    return f"file:{path}"


def encrypt_segment(path: Path, key: Key) -> Path:
    """Put an encrypted segment in place of a plain one, as sealing would have made it; return its path."""
    name = replace(SegmentName.parse(path.name), key_id=key.id)
    file = pq.ParquetFile(pa.BufferReader(path.read_bytes()))
    footer = SegmentFooter.from_json(file.schema_arrow.metadata[METADATA_KEY])
    sink = pa.BufferOutputStream()
    said = {METADATA_KEY: replace(footer, key_id=key.id).to_json()}
    pq.write_table(file.read().replace_schema_metadata(said), sink)
    raw = encrypt(key, sink.getvalue().to_pybytes(), name.bond(path.parent.name))
    target = path.with_name(str(replace(name, sha256=hashlib.sha256(raw).hexdigest())))
    target.write_bytes(raw)
    path.unlink()
    return target


def decrypt_segment(path: Path, key: Key) -> bytes:
    """Return the Parquet bytes of an encrypted segment in a spool."""
    return decrypt(key, path.read_bytes(), SegmentName.parse(path.name).bond(path.parent.name))
