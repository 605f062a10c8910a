"""Versions that a bucket keeps of deleted objects: nobody looks into them, and that is told."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from fsspec.implementations.local import LocalFileSystem

from ranklake.lake.archives.register import archive_places
from ranklake.lake.spool.local_folder import SpoolFolder
from ranklake.lake.storage.reachability import LakeUnreachableError
from ranklake.retention.traces.roots import Source

if TYPE_CHECKING:
    from ranklake.lake.spool.spool import Spool
    from ranklake.lake.storage.store import Lake

PLACE: Final = "versions kept by the bucket"
KEPT: Final = "the bucket keeps versions of deleted objects, which are not looked into"
UNKNOWN: Final = "whether the bucket keeps versions of deleted objects cannot be told here"


def kept_versions(lake: "Lake", spool: "Spool | None") -> Iterator[tuple[Source, str]]:
    """Yield each bucket that keeps versions, or may, and which of both."""
    seen = set()
    places = [lake, *archive_places(lake)]
    for fs, root in (*((one.fs, one.root) for one in places), *(() if spool is None else ((spool.fs, spool.root),))):
        bucket = root.lstrip("/").partition("/")[0]
        if isinstance(fs, (LocalFileSystem, SpoolFolder)) or bucket in seen:
            continue
        seen.add(bucket)
        try:
            keeps = fs.is_bucket_versioned(bucket)
        except (AttributeError, NotImplementedError, LakeUnreachableError):
            keeps = None
        if keeps is not False:
            yield Source(PLACE, bucket, bucket, fs, is_folder=True), KEPT if keeps else UNKNOWN
