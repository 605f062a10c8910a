"""Packs for tests."""

from pathlib import Path

from ranklake.segments.pack import pack


def pack_up(spool: Path, paths: list[Path] | None = None) -> Path:
    """Put segments of a local spool (by default all) into a pack in place of the files; return the pack's path."""
    paths = sorted(spool.glob("segments/*/*/*.parquet")) if paths is None else paths
    where, raw = pack({str(path.relative_to(spool)): path.read_bytes() for path in paths})
    target = spool / where
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(raw)
    for path in paths:
        path.unlink()
    return target
