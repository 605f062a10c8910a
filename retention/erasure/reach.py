"""How far an erasure reaches: a lake, a spool, folders beside them; and what of them it does not touch."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ranklake.retention.erasure.rows import is_book
from ranklake.retention.proposals.erasure_verification import NAMED
from ranklake.retention.traces.roots import ARCHIVES, COPIES, FOLDER
from ranklake.retention.traces.search import Searched, each

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.store.store import Lake
    from ranklake.retention.erasure.subject import Subject


@dataclass(frozen=True, slots=True)
class Reach:
    """Where a subject is looked for, and erased.

    Attributes
    ----------
    spool
        None where there is none.
    folders
        Local ones: a report's site, Prefect's home.
    """

    lake: "Lake"
    spool: "Spool | None" = None
    folders: tuple[Path, ...] = ()

    def each(self, subject: "Subject", progress: "Progress | None" = None) -> Iterator[Searched]:
        """Yield every file, with what is found of a subject in it."""
        yield from each(self.lake, self.spool, subject.sought, self.folders, progress=progress)

    def spooled(self, files: Iterable[Searched]) -> list[str]:
        """Return the paths of segments and packs in the spool in which something was found."""
        top = "\0" if self.spool is None else f"{self.spool.root}/"
        now = (one.source for one in files if one.counts and one.source.version is None)
        hit = [source.uri for source in now if not source.is_folder]
        return [path for path in hit if path.startswith(top) and "/segments/" in path]


def why_it_stays(lake: "Lake", one: Searched) -> str:
    """Return why a file in which a subject is found is not touched; empty if it is."""
    top, _, rest = one.source.path.partition("/")
    if one.source.place.startswith((FOLDER, COPIES, ARCHIVES, "segments in", "records of imports")):
        return ""
    table = rest.partition("/")[0]
    known = lake.contracts().get(table)
    if top == "tables" and known is not None and is_book(known) and table != NAMED and "/_delta_log/" not in f"/{rest}":
        return "the books, which are kept"
    return "operators' own words" if top == "contracts" else ""
