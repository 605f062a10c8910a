"""The overlays that a lake stores, in files ``contracts/<number>.json``. Each contains the complete overlay.

An operator's folder exists on one machine and may be deleted. The lake therefore stores each overlay under which it is
written. Workers of a cluster read it there, a plan contains the number of its overlay, and a table stays readable and
governed after its folder was deleted. Contracts in the lake only grow: omitting a column does not remove it.
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
_DRAFT_HINT: Final = "draft its migration: ranklake migrate new"


def name_of(number: int) -> str:
    """Return the name, within the lake, of the file of a stored overlay."""
    return f"{FOLDER}/{number:010}.json"


def newest(store: Store) -> int:
    """Return the number of a lake's newest stored overlay; 0 if there is none. Raises `LakeUnreachableError`."""
    try:
        names = [path.rpartition("/")[2] for path in store.fs.ls(store.path(FOLDER), detail=False)]
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise unreachable(store.uri, error, store.storage) from None
    return max((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), default=0)


def stored_overlay(store: Store, number: int) -> Overlay | None:
    """Return a stored overlay; None for number 0. Raises `ContractError` and `LakeUnreachableError`."""
    if not number:
        return None
    path = store.path(name_of(number))
    try:
        return unpack(bytes(store.fs.cat_file(path)), path)
    except OSError as error:
        raise unreachable(store.uri, error, store.storage) from None


def newest_overlay(store: Store) -> Overlay | None:
    """Return a lake's newest stored overlay; None if there is none. Raises as `stored_overlay`."""
    return stored_overlay(store, newest(store))


def unapplied_versions(store: Store, own: Overlay | None) -> dict[str, int]:
    """Return the tables for which the configured overlay has unapplied migrations, with their versions in the lake.

    Raises as `stored_overlay`.
    """
    known = newest_overlay(store)
    if known is None or own is None:
        return {}
    both, result = own.over(known), {}
    for name in own.tables:
        if name in known.tables and known.files[f"{name}.yaml"] != own.files[f"{name}.yaml"]:
            before, after = (_version(contract(name, overlay)) for overlay in (known, both))
            if after > before and both.has_migrations(name, before, after):
                result[name] = before
    return result


def keep(store: Store, own: Overlay | None, waiting: Mapping[str, int] = NONE_WAITING) -> int:
    """Store the configured overlay in a lake unless it is already stored. Returns the number of the valid overlay.

    `waiting` contains tables that wait for a migration, each with its version in the lake. The lake keeps that version,
    and migrations from it are not stored. Concurrent calls merge their overlays. Nothing is stored on errors:
    `ContractError` if the overlay cannot succeed the stored one, and `LakeUnreachableError`.
    """
    if own is not None and waiting:
        files = {name: text for name, text in own.files.items() if not _belongs_to_waiting(name, own, waiting)}
        own = Overlay(files, own.origin)
    while True:
        number = newest(store)
        known = stored_overlay(store, number)
        if own is None or (known is not None and known.contains(own)):
            return number
        if fault := refusal(known, own):
            raise fault
        both = own.over(known)
        load_contracts(both)  # raises for invalid contracts, before they are stored
        load_metrics(both)
        if store.put_if_absent(name_of(number + 1), pack(both)):
            return number + 1


def _belongs_to_waiting(name: str, own: Overlay, waiting: Mapping[str, int]) -> bool:
    return any(
        name == f"{table}.yaml" or own.is_migration_from(name, table, version) for table, version in waiting.items()
    )


def restore_version(store: Store, table: str, version: int) -> bool:
    """Restore the contract of an earlier version of a table, without the migrations from it, after an undo.

    For a packaged table, restores the columns that the overlay adds. The operator's folder is not changed; a command
    that is configured with it still uses its files. Returns False if no stored overlay has this version.
    """
    while True:
        number = newest(store)
        known = stored_overlay(store, number)
        history = (stored_overlay(store, earlier) for earlier in range(number, 0, -1))
        former = next((overlay for overlay in history if overlay and _has_version(overlay, table, version)), None)
        if known is None or former is None:
            return False
        if _has_version(known, table, version):
            return True
        files = {name: text for name, text in known.files.items() if not known.is_migration_from(name, table, version)}
        files[f"{table}.yaml"] = former.files[f"{table}.yaml"]
        if store.put_if_absent(name_of(number + 1), pack(Overlay(files, known.origin))):
            return True


def _has_version(overlay: Overlay, table: str, version: int) -> bool:
    try:
        return table in overlay.tables and _version(contract(table, overlay)) == version
    except ContractError:  # such as a column whose name a packaged column has since an upgrade
        return False


def pack(overlay: Overlay) -> bytes:
    """Return the bytes of an overlay's file in a lake, without its origin."""
    return json.dumps({"format": _FORMAT, "files": dict(sorted(overlay.files.items()))}, indent=1).encode()


def unpack(raw: bytes, where: str) -> Overlay:
    """Return the overlay of such a file. Raises `ContractError` if it is damaged."""
    try:
        facts = json.loads(raw)
        files = {str(name): text for name, text in facts["files"].items()}
        is_valid = facts["format"] == _FORMAT and all(is_text(text) for pair in files.items() for text in pair)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_valid, files = False, {}
    if not is_valid:
        hint = "restore it from a backup; or remove it: the next ingest writes your overlay again"
        raise ContractError("the lake's copy of your contracts is damaged", where=where, hint=hint)
    return Overlay(files, where)


def merge(known: Overlay | None, own: Overlay | None) -> Overlay | None:
    """Merge the stored and the configured overlay. A configured table that `refusal` reports is left out."""
    if known is None or own is None:
        return own or known
    refused = {f"{name}.yaml" for name in own.tables if _fault(name, known, own) is not None}
    files = {name: text for name, text in own.files.items() if name not in refused}
    return Overlay(files, own.origin).over(known)


def refusal(known: Overlay | None, own: Overlay) -> ContractError | None:
    """Return why a configured overlay cannot succeed the stored one; None if it can."""
    for name in own.tables:
        fault = None if known is None else _fault(name, known, own)
        if fault is not None:
            return fault
    return None


def _fault(name: str, known: Overlay, own: Overlay) -> ContractError | None:
    if name not in known.tables or known.files[f"{name}.yaml"] == own.files[f"{name}.yaml"]:
        return None
    old, new = (structure(contract(name, overlay)) for overlay in (known, own.over(known)))
    where = f"{own.origin}/{name}.yaml"
    before, after = _version(old), _version(new)
    if after < before:
        message = f"version {after} of {name!r}, and the lake was written under version {before}"
        return ContractError(message, where=where, hint="bring the newer file here")
    is_migrated = after > before and own.over(known).has_migrations(name, before, after)
    for change in () if is_migrated else diff(old, new):
        if change.verdict != "safe" and change.detail != _RETIRED:
            hint = (
                "put it back, or list it under `retired:`"
                if "removed" in change.detail
                else f"undo it, or {_DRAFT_HINT} {name}"
            )
            message = f"{change.item} {change.detail}, and the lake was written under the other"
            return ContractError(message, where=where, hint=hint)
    has_versions = name not in table_names() or after > 1
    if has_versions and after == before and diff(old, new):
        message = f"version {before} of {name!r} is not the one that the lake was written under"
        return ContractError(message, where=where, hint=f"raise version to {before + 1}")
    return None


def _version(contract: Contract) -> int:
    """Return the version in an overlay's file: of its table, or of the columns that it adds to a packaged table."""
    return contract.added_version if contract.table in table_names() else contract.version
