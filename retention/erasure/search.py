"""Searches every file for values, and reports where they are without showing them."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.printable import printable_name
from ranklake.retention.erasure.columns import Unsearched
from ranklake.retention.erasure.contents import Decrypt, look
from ranklake.retention.erasure.needles import Needles, needles
from ranklake.retention.erasure.roots import Source, kept_versions, sources, with_lock
from ranklake.retention.subjects.keys import SubjectKey, opened
from ranklake.retention.subjects.store import KeyStore, has_keys
from ranklake.segments.envelope import EncryptionError, decrypt
from ranklake.segments.keys import find_key
from ranklake.segments.references import SecretError
from ranklake.segments.segment import NotASegmentError, SegmentName

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.store.lake import Lake
    from ranklake.retention.subjects.keys import SubjectName


_REMEMBERED: Final = 65_536


def opened_by_others(lake: "Lake", subjects: "Collection[SubjectName]") -> Callable[[str], str | None] | None:
    """Return a function that opens what keys of other subjects sealed; None where a lake has no keys.

    Keys are read when the first sealed text is met. It raises as `ranklake.retention.subjects.store.KeyStore` then.
    """
    if not has_keys(lake):
        return None

    @cache
    def keys() -> dict[str, SubjectKey]:
        return KeyStore(lake).by_id(but=subjects)

    @lru_cache(_REMEMBERED)
    def clear(text: str) -> str | None:
        return opened(text, keys())

    return clear


EXAMPLES = 3
NAME = "name of the file"


@dataclass(frozen=True, slots=True)
class Trace:
    """Where values are, of one kind of place.

    Attributes
    ----------
    place
        What the files are, such as ``rows of steps``, ``old versions of steps``, ``segments in the spool``.
    where
        Where in them: a column, their name, their bytes, their footer.
    files, count
        Files, and rows or occurrences in them.
    examples
        Some of the files; values in their names are left out.
    """

    place: str
    where: str
    files: int
    count: int
    examples: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found: traces, what could not be looked into (reason by place, with the number of files), sizes."""

    traces: tuple[Trace, ...]
    unsearched: tuple[Trace, ...]
    files: int

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found, and all was looked into."""
        return not self.traces and not self.unsearched

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        fields = {"found": self.traces, "unsearched": self.unsearched}
        return {
            "files": self.files,
            "is_clean": self.is_clean,
            **{name: [one.plain() for one in some] for name, some in fields.items()},
        }


def search(
    lake: "Lake",
    spool: "Spool | None",
    values: Iterable[str],
    folders: Sequence[Path] = (),
    *,
    progress: "Progress | None" = None,
) -> SearchResult:
    """Look for values in every file of a lake, a spool and some folders; nothing is written, no value is reported.

    A value is found as it is, in JSON, HTML, URLs, base64 and hex, and in letters of either case; in columns of
    Parquet, archives, gzip, SQLite, segments that a configured key opens, and in what keys of other people sealed.
    Numbers, hashes and pseudonyms of it are not found.

    Raises
    ------
    ranklake.retention.erasure.needles.NeedleError
        No value is given, or one of less than four characters.
    """
    given = list(values)
    sought = replace(needles(given), opened=opened_by_others(lake, given))
    return summarize(each(lake, spool, sought, folders, progress=progress), sought)


@dataclass(frozen=True, slots=True)
class FileMatches:
    """A file, or a folder: how often values are where in it, and why parts of it were not looked into."""

    source: Source
    counts: Counter[str]
    unsearched: frozenset[str] = frozenset()


def each(
    lake: "Lake",
    spool: "Spool | None",
    sought: Needles,
    folders: Sequence[Path] = (),
    *,
    progress: "Progress | None" = None,
) -> Iterator[FileMatches]:
    """Yield every file of a lake, a spool and some folders with what is found in it; see `search`."""
    opened = opener(lake.config.encryption_key)
    yield from each_version(lake, spool, sought)
    every = list(sources(lake.tables, spool, folders))
    for number, source in enumerate(every, 1):
        yield _searched(source, sought, opened)
        if progress is not None:
            progress(number, len(every))


def each_version(lake: "Lake", spool: "Spool | None", sought: Needles) -> Iterator[FileMatches]:
    """Yield every version that a bucket keeps beside a current one, with what is found in it; see `each`."""
    opened = opener(lake.config.encryption_key)
    for source, why_not in list(kept_versions(lake, spool)):
        if why_not:
            yield FileMatches(source, Counter(), frozenset({why_not}))
            continue
        counts = _searched(source, sought, opened)
        yield replace(counts, source=with_lock(source)) if counts.counts else counts


def _searched(source: Source, sought: Needles, opened: Decrypt) -> FileMatches:
    counts, why = (Counter[str](), set[str]()) if source.is_folder else _in(source, sought, opened)
    if count := sought.count(source.path.encode(errors="replace")):
        counts[NAME] = count
    return FileMatches(source, counts, frozenset(why))


def summarize(matches: Iterable[FileMatches], sought: Needles) -> SearchResult:
    """Return what was found, by kinds of places."""
    amounts: dict[tuple[str, str], list[tuple[str, int]]] = {}
    missed: dict[tuple[str, str], list[tuple[str, int]]] = {}
    files = 0
    for match in matches:
        files += not match.source.is_folder
        for where, count in match.counts.items():
            amounts.setdefault((match.source.place, where), []).append((match.source.uri, count))
        for why in match.unsearched:
            missed.setdefault((match.source.place, why), []).append((match.source.uri, 1))
    return SearchResult(_as_traces(amounts, sought), _as_traces(missed, sought), files)


def opener(keys: str) -> Decrypt:
    """Return a function that opens encrypted segments by a keyring, as far as it has their keys."""

    def opened(path: str, raw: bytes) -> bytes | None:
        *_, table, name = ("", *path.split("/"))
        try:
            named = SegmentName.parse(name)
            return decrypt(find_key(keys, named.key_id), raw, named.bond(table))
        except (NotASegmentError, EncryptionError, SecretError):
            return None

    return opened


def _in(source: Source, sought: Needles, opened: Decrypt) -> tuple[Counter[str], set[str]]:
    """Return what is found in one file, and why parts of it were not looked into."""
    counts: Counter[str] = Counter()
    why: set[str] = set()
    if source.closed:
        return counts, {source.closed}
    try:
        with source.opened() as file:
            for hit in look(file, source.path, sought, opened):
                if isinstance(hit, Unsearched):
                    why.add(hit.why)
                else:
                    counts[hit.where] += hit.count
    except FileNotFoundError:
        pass  # it went while others were looked at
    except OSError as error:
        why.add(f"cannot be opened ({type(error).__name__})")
    return counts, why


def _as_traces(amounts: dict[tuple[str, str], list[tuple[str, int]]], sought: Needles) -> tuple[Trace, ...]:
    return tuple(
        Trace(
            printable_name(sought.masked(place)),
            printable_name(sought.masked(where)),
            len(hits),
            sum(count for _, count in hits),
            tuple(printable_name(sought.masked(uri)) for uri, _ in hits[:EXAMPLES]),
        )
        for (place, where), hits in sorted(amounts.items())
    )
