"""Versions that a bucket keeps beside the current ones: each is looked into; where that cannot be, it is told."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.store.versions import UNKNOWN, keeps_versions, versions, why_kept
from ranklake.retention.archive.register import archive_places
from ranklake.retention.shares.place import open_place
from ranklake.retention.shares.register import shares
from ranklake.retention.traces.roots import Source

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.store.store import Lake

PLACE: Final = "versions kept by the bucket"
KEPT: Final = "the bucket keeps versions, and the right to list them is lacking: s3:ListBucketVersions"


def kept_versions(lake: "Lake", spool: "Spool | None") -> Iterator[tuple[Source, str]]:
    """Yield every version beside a current one, markers for their names; of a bucket that cannot be asked, why not."""
    told: set[str] = set()
    for fs, root in _places(lake, spool):
        bucket = root.lstrip("/").partition("/")[0]
        keeps = keeps_versions(fs, root)
        if keeps is False:
            continue
        why = UNKNOWN
        if keeps:
            try:
                yield from ((one, "") for one in _sources(fs, root))
            except (OSError, RanklakeError):
                why = KEPT
            else:
                continue
        if bucket not in told:
            told.add(bucket)
            yield Source(PLACE, bucket, bucket, fs, is_folder=True), why


def with_lock(source: Source) -> Source:
    """Return a version in which something was found, with what keeps it there, and until when."""
    why = "" if source.version is None else why_kept(source.fs, source.version)
    return replace(source, place=f"{source.place}, {why}") if why else source


def _places(lake: "Lake", spool: "Spool | None") -> Iterator[tuple[Any, str]]:
    seen: list[str] = []
    places = [lake, *archive_places(lake), *(open_place(lake, share.uri) for share in shares(lake))]
    for fs, root in (*((one.fs, one.root) for one in places), *(() if spool is None else ((spool.fs, spool.root),))):
        top = f"{root.strip('/')}/"
        if not any(top.startswith(other) for other in seen):
            seen.append(top)
            yield fs, root


def _sources(fs: Any, root: str) -> Iterator[Source]:  # noqa: ANN401 - fsspec ships no types
    top = f"{root.strip('/')}/"
    for one in versions(fs, top):
        if one.is_marker or not one.is_current:
            yield Source(PLACE, one.path, one.path.removeprefix(top), fs, is_folder=one.is_marker, version=one)
