"""The overlays that a lake was written under: files ``contracts/<number>.json``, each the whole of what it knew then.

An operator's folder is on one machine, and may be gone tomorrow. What a lake was written under stays in it: workers of
a cluster read it there, a plan names the number that it was composed under, and a table whose folder was removed stays
readable and governed. What a lake once knew of a table only grows: a column is never given up by leaving it out.
"""

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ranklake.file_formats import is_text
from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.freeze import diff, structure
from ranklake.lake.contracts.load import contract, load_contracts, load_metrics, table_names
from ranklake.lake.contracts.model import Contract
from ranklake.lake.contracts.overlay import Overlay
from ranklake.lake.store.reachability import unreachable
from ranklake.lake.store.store import Store

FOLDER: Final = "contracts"
_FORMAT: Final = 1
_NAME: Final = re.compile(r"(\d{10})\.json")
_RETIRED: Final = "retired"
NONE_WAITING: Final[Mapping[str, int]] = MappingProxyType({})
_NEW: Final = "draft its migration: ranklake migrate new"


def name_of(number: int) -> str:
    """Return where the overlay of a number is within the lake."""
    return f"{FOLDER}/{number:010}.json"


def newest(store: Store) -> int:
    """Return the number of the newest overlay that a lake keeps; 0 for none. Raises `LakeUnreachableError`."""
    try:
        names = [path.rpartition("/")[2] for path in store.fs.ls(store.path(FOLDER), detail=False)]
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise unreachable(store.uri, error, store.storage) from None
    return max((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), default=0)


def stored_overlay(store: Store, number: int) -> Overlay | None:
    """Return what a lake keeps under a number; None for 0. Raises `ContractError` and `LakeUnreachableError`."""
    if not number:
        return None
    path = store.path(name_of(number))
    try:
        return unpack(bytes(store.fs.cat_file(path)), path)
    except OSError as error:
        raise unreachable(store.uri, error, store.storage) from None


def newest_kept(store: Store) -> Overlay | None:
    """Return the newest overlay that a lake keeps; None for none. Raises as `stored_overlay`."""
    return stored_overlay(store, newest(store))


def unapplied_versions(store: Store, own: Overlay | None) -> dict[str, int]:
    """Return the tables of which the configured overlay has migrations that the lake does not know, with its version.

    Raises as `stored_overlay`.
    """
    known = newest_kept(store)
    if known is None or own is None:
        return {}
    both, result = own.over(known), {}
    for name in own.tables:
        if name in known.tables and known.files[f"{name}.yaml"] != own.files[f"{name}.yaml"]:
            before, after = (_version(contract(name, one)) for one in (known, both))
            if after > before and both.leads(name, before, after):
                result[name] = before
    return result


def keep(store: Store, own: Overlay | None, waiting: Mapping[str, int] = NONE_WAITING) -> int:
    """Store the configured overlay in a lake unless it is stored; return the number of the effective one.

    Of tables that wait for a migration the lake goes on to know the version that is named, and not what leads from it.
    Two that do so at once both see both. Raises `ContractError` where it cannot follow what the lake was written under,
    and `LakeUnreachableError`; nothing is kept then.
    """
    if own is not None and waiting:
        files = {name: text for name, text in own.files.items() if not _is_of_waiting(name, own, waiting)}
        own = Overlay(files, own.origin)
    while True:
        number = newest(store)
        known = stored_overlay(store, number)
        if own is None or (known is not None and known.has(own)):
            return number
        if fault := refusal(known, own):
            raise fault
        both = own.over(known)
        load_contracts(both)  # nothing is kept that cannot be read
        load_metrics(both)
        if store.put_if_absent(name_of(number + 1), pack(both)):
            return number + 1


def _is_of_waiting(name: str, own: Overlay, waiting: Mapping[str, int]) -> bool:
    return any(name == f"{table}.yaml" or own.is_after(name, table, version) for table, version in waiting.items())


def put_back(store: Store, table: str, version: int) -> bool:
    """Have a lake know a table by an earlier version of its file again, and not what led from there; say if it could.

    Of a table of ours: the columns that are added to it. For who undid a migration of it. The folder of the operator
    stays: what it says counts where it is configured.
    """
    while True:
        number = newest(store)
        known = stored_overlay(store, number)
        earlier = (stored_overlay(store, one) for one in range(number, 0, -1))
        former = next((one for one in earlier if one and _is_at(one, table, version)), None)
        if known is None or former is None:
            return False
        if _is_at(known, table, version):
            return True
        files = {name: text for name, text in known.files.items() if not known.is_after(name, table, version)}
        files[f"{table}.yaml"] = former.files[f"{table}.yaml"]
        if store.put_if_absent(name_of(number + 1), pack(Overlay(files, known.origin))):
            return True


def _is_at(overlay: Overlay, table: str, version: int) -> bool:
    try:
        return table in overlay.tables and _version(contract(table, overlay)) == version
    except ContractError:  # of a column that has the name of one of ours by now
        return False


def pack(overlay: Overlay) -> bytes:
    """Return an overlay as a lake keeps it: no word of where it was."""
    return json.dumps({"format": _FORMAT, "files": dict(sorted(overlay.files.items()))}, indent=1).encode()


def unpack(raw: bytes, where: str) -> Overlay:
    """Return what a lake kept. Raises `ContractError` where it is damaged."""
    try:
        facts = json.loads(raw)
        files = {str(name): text for name, text in facts["files"].items()}
        is_whole = facts["format"] == _FORMAT and all(is_text(one) for pair in files.items() for one in pair)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_whole, files = False, {}
    if not is_whole:
        hint = "restore it from a backup; or remove it: the next ingest writes your overlay again"
        raise ContractError("the lake's copy of your contracts is damaged", where=where, hint=hint)
    return Overlay(files, where)


def merge(known: Overlay | None, own: Overlay | None) -> Overlay | None:
    """Return what a lake knew and what is configured; where `refusal` has a word against a table, what it knew."""
    if known is None or own is None:
        return own or known
    stays = {f"{name}.yaml" for name in own.tables if _fault(name, known, own) is not None}
    files = {name: text for name, text in own.files.items() if name not in stays}
    return Overlay(files, own.origin).over(known)


def refusal(known: Overlay | None, own: Overlay) -> ContractError | None:
    """Return why a lake cannot be written under an overlay after what it knew; None if it can."""
    for name in own.tables:
        fault = None if known is None else _fault(name, known, own)
        if fault is not None:
            return fault
    return None


def _fault(name: str, known: Overlay, own: Overlay) -> ContractError | None:
    if name not in known.tables or known.files[f"{name}.yaml"] == own.files[f"{name}.yaml"]:
        return None
    old, new = (structure(contract(name, one)) for one in (known, own.over(known)))
    where = f"{own.origin}/{name}.yaml"
    before, after = _version(old), _version(new)
    if after < before:
        message = f"version {after} of {name!r}, and the lake was written under version {before}"
        return ContractError(message, where=where, hint="bring the newer file here")
    is_migrated = after > before and own.over(known).leads(name, before, after)
    for change in () if is_migrated else diff(old, new):
        if change.verdict != "safe" and change.detail != _RETIRED:
            hint = (
                "put it back, or list it under `retired:`"
                if "removed" in change.detail
                else f"undo it, or {_NEW} {name}"
            )
            message = f"{change.item} {change.detail}, and the lake was written under the other"
            return ContractError(message, where=where, hint=hint)
    has_versions = name not in table_names() or after > 1
    if has_versions and after == before and diff(old, new):
        message = f"version {before} of {name!r} is not the one that the lake was written under"
        return ContractError(message, where=where, hint=f"raise version to {before + 1}")
    return None


def _version(contract: Contract) -> int:
    """Return the version that an overlay's file says: of its table, or of what it adds to one of ours."""
    return contract.added_version if contract.table in table_names() else contract.version
