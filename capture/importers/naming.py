"""Naming: which run a file's rows go into, and whether they were imported before."""

import posixpath
from typing import Any, Final

from ranklake.capture.importers.formats import FORMATS
from ranklake.capture.importers.mapping import Mapping as ColumnMapping
from ranklake.capture.importers.shipping import Shipping
from ranklake.capture.importers.source import Source
from ranklake.capture.provenance.names import clean

_DIGITS: Final = 8


def named(
    files: list[Source], run: str | None, columns: ColumnMapping | None, kind: str, *, own_run: bool
) -> list[tuple[Source, str, str]]:
    """Return files with their digests and runs; where runs of different files would share a name, it says which.

    Raises `SourceError` where files that would be one run say that they are not.
    """
    found = []
    folders = {source.parent for source in files} if FORMATS[kind].by_folder else set()
    apart = _in_folders(files)
    for source in files:
        sha256 = source.digest()
        several = len(files) > 1
        name = _run_name(
            run, source, sha256, apart[source.path], several=several, own_run=own_run, columns=columns, kind=kind
        )
        if run is not None and len(folders) > 1 and source.parent != (top := posixpath.commonpath(folders)):
            name = clean("-".join([run, *source.parent.removeprefix(top).strip("/").split("/")]))[:128]
        found.append((source, sha256, name))
    if (refuse := FORMATS[kind].refuse_strangers) is not None:
        for one in dict.fromkeys(name for *_, name in found):
            refuse([source for source, _, name in found if name == one])
    contents = {name: {sha256 for _, sha256, other in found if other == name} for _, _, name in found}
    shared = {name for name, digests in contents.items() if own_run and len(digests) > 1}
    return [
        (source, sha256, f"{name[: 127 - _DIGITS]}-{sha256[:_DIGITS]}" if name in shared else name)
        for source, sha256, name in found
    ]


def of_folder(source: Source, kind: str) -> str:
    """Return the name of a run whose files lie side by side."""
    return clean("-".join(filter(None, source.folders)) or kind)[:128]


def known_as(
    shipping: Shipping, memory: str, source: Source, sha256: str, mapping: str, given: str | None
) -> str | None:
    """Return the name that an earlier import, of other files beside it, made for a file: it stays one run."""
    kind = memory.partition("/")[0]
    if FORMATS[kind].by_file and shipping.remembered(memory, source.path, of_folder(source, kind)) is not None:
        return of_folder(source, kind)  # as versions named it that went by the folder
    stem, digest = clean(source.stem), sha256[:_DIGITS]
    plain = stem if given is None else f"{given}-{stem}"[:128]
    # without a name given it was noted under none; then come the names that versions made which left folders out
    for name in (*([""] if given is None else []), f"{plain[: 127 - _DIGITS]}-{digest}"):
        before = shipping.remembered(memory, source.path, name)
        if before is not None and (before.get("sha256"), before.get("mapping")) == (sha256, mapping):
            return str(before["run"])
    return None


def of_before(shipping: Shipping, columns: ColumnMapping | None, source: Source, name: str) -> dict[str, Any] | None:
    """Return what versions that had one note for all tables noted of an import into the mapping's table."""
    before = None if columns is None else shipping.remembered("table", source.path, name)
    if columns is None or before is None:
        return None
    own = set(before.get("rows", {}))
    return before if columns.contract.table in (own if own == {"runs"} else own - {"runs"}) else None


def _in_folders(files: list[Source]) -> dict[str, str]:
    """Return what of each file's folder tells it apart from the others', by path; empty where all lie in one."""
    parents = [source.parent for source in files]
    if len(set(parents)) < 2:  # noqa: PLR2004 - folders
        return {source.path: "" for source in files}
    top = posixpath.commonpath(parents)
    return {source.path: clean(source.parent.removeprefix(top).strip("/").replace("/", "-")) for source in files}


def _run_name(
    given: str | None,
    source: Source,
    sha256: str,
    folder: str,
    *,
    several: bool,
    own_run: bool,
    columns: ColumnMapping | None,
    kind: str,
) -> str:
    stem = clean("-".join(filter(None, (folder, source.stem))))
    if given is not None:
        return f"{given}-{stem}"[:128] if several and own_run else given
    if not own_run:
        if columns is not None and columns.run:
            return columns.run
        return of_folder(source, kind)  # files of one run lie side by side
    if FORMATS[kind].by_file:
        return stem[:128]
    return stem[:128] if columns is not None else f"{stem[: 127 - _DIGITS]}-{sha256[:_DIGITS]}"
