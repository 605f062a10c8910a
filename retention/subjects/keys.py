"""Keys of subjects (people or runs), how they seal texts, and the list of a lake's columns under keys.

<lake>/subjects.json              columns that were ever stored under keys, with their ids, which migrations keep
<lake>/subjects/<number>.json     additions to this list, from 2 on

Each file is written once with put-if-absent. Of two concurrent writers, the second reads the first one's file and
writes the next number.
"""

import base64
import hmac
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from unicodedata import normalize

from ranklake.errors import RanklakeError
from ranklake.lake.store.reachability import LakeError
from ranklake.segments.envelope import EncryptionError

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Column, Contract
    from ranklake.lake.store.store import Store

KNOWN: Final = "subjects.json"
FOLDER: Final = "subjects"
FORMAT: Final = 1


class SubjectKeysError(LakeError):
    """Keys of subjects are missing or damaged. No row was stored and no key deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedColumns:
    """The columns that were ever stored under keys.

    Attributes
    ----------
    columns
        The column that names the subject, by ``table.column`` with the names of that time.
    ids
        Ids in the contracts, by ``table.column``, of these columns and of those that name subjects. A name that two
        columns had has both ids.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    ids: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: bytes) -> "KeyedColumns":
        """Return the list in JSON bytes. Raises `KeyError`, `TypeError`, `ValueError` or `AttributeError`."""
        facts = json.loads(raw)
        columns = {str(name): str(by) for name, by in facts["columns"].items()}
        ids = {str(name): frozenset(map(int, numbers)) for name, numbers in facts["ids"].items()}
        return cls(columns=columns, ids=ids)

    def with_more(self, columns: Mapping[str, str], ids: Mapping[str, Collection[int]]) -> "KeyedColumns":
        """Return the list with further columns."""
        all_ids = {name: self.ids.get(name, frozenset()) | set(ids.get(name, ())) for name in {*self.ids, *ids}}
        return KeyedColumns(columns={**self.columns, **columns}, ids=all_ids)

    def raw(self) -> bytes:
        """Return the list as JSON bytes."""
        facts: dict[str, Any] = {"format": FORMAT, "columns": dict(self.columns)}
        return json.dumps({**facts, "ids": {name: sorted(numbers) for name, numbers in self.ids.items()}}).encode()


def keyed_columns(store: "Store") -> KeyedColumns:
    """Return the list of a lake's columns under keys. Raises `SubjectKeysError` if a file of the list is damaged."""
    return _read_list(store)[0]


def _read_list(store: "Store") -> tuple[KeyedColumns, int]:
    """Return the list, and the number of its files."""
    columns, files = KeyedColumns(), 0
    while (raw := _raw(store, files + 1)) is not None:
        try:
            part = KeyedColumns.parse(raw)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            hint = "write it again: columns, each with the one that names whose it is, and the ids of both in contracts"
            message = "what says which columns are under keys is damaged"
            raise SubjectKeysError(message, where=store.path(_name(files + 1)), hint=hint) from None
        columns, files = columns.with_more(part.columns, part.ids), files + 1
    return columns, files


def _raw(store: "Store", number: int) -> bytes | None:
    try:
        return bytes(store.fs.cat_file(store.path(_name(number))))
    except FileNotFoundError:
        return None


def _name(number: int) -> str:
    return KNOWN if number == 1 else f"{FOLDER}/{number:010}.json"


def known_columns(store: "Store") -> Mapping[str, str]:
    """Return the columns that were ever stored under keys, as in `KeyedColumns.columns`. Raises `SubjectKeysError`."""
    return keyed_columns(store).columns


def add_columns(store: "Store", columns: Mapping[str, str], ids: Mapping[str, Collection[int]]) -> None:
    """Add columns to the list, unless it has them. The arguments are as in `KeyedColumns`."""
    while True:
        before, files = _read_list(store)
        after = before.with_more(columns, ids)
        if after == before or store.put_if_absent(_name(files + 1), after.raw()):
            return


def current_id(contract: "Contract", name: str) -> frozenset[int]:
    """Return the id of the column that has this name now; empty if there is none."""
    return frozenset({contract.column(name).id}) if name in contract else frozenset()


class Lineage:
    """The columns that were ever stored under keys, followed through migrations to today's contracts.

    Raises `SubjectKeysError`.
    """

    def __init__(self, store: "Store") -> None:
        self._list = keyed_columns(store)

    def ids(self, contract: "Contract", name: str) -> frozenset[int]:
        """Return the ids of the columns that had this name when values were stored under keys, or that have it now."""
        return self._list.ids.get(f"{contract.table}.{name}") or current_id(contract, name)

    def current_name(self, contract: "Contract", name: str) -> str:
        """Return the current name of a column; the given name if it is current or unknown."""
        if name in contract:
            return name
        ids = self.ids(contract, name)
        names = [column.name for column in contract.columns if column.id in ids]
        return names[0] if len(names) == 1 else name

    def is_gone(self, contract: "Contract", name: str) -> bool:
        """Return whether a column was dropped."""
        return bool({column.id for column in contract.retired} & self.ids(contract, name))

    def stored_columns(self, contract: "Contract") -> Mapping[int, str]:
        """Return the columns of a table that were ever stored under keys: ``table.column`` of that time by id."""
        former: dict[int, str] = {}
        for qualified in sorted(self._list.columns):
            table, _, name = qualified.partition(".")
            if table == contract.table:
                former |= {id_: qualified for id_ in self.ids(contract, name) if id_ not in former}
        return former

    def sealed_columns(self, contract: "Contract") -> "Mapping[str, Column]":
        """Return the columns of a contract that were ever stored under keys, by their current ``table.column``."""
        ids = self.stored_columns(contract)
        return {f"{contract.table}.{column.name}": column for column in contract.columns if column.id in ids}


@dataclass(frozen=True, slots=True)
class RunSubject:
    """A run as the subject of values without a person. Names of runs are case-sensitive."""

    run: str


SubjectName = str | RunSubject
"""A person, by name, or a run."""


def normalized_name(name: str) -> str:
    """Return a person's name for comparison: case folded, in NFC, without surrounding spaces."""
    return normalize("NFC", normalize("NFD", name.strip()).casefold()).strip()


def lookup_text(subject: SubjectName) -> str:
    """Return the text by which a subject's key is looked up. Only those of runs begin with a space."""
    return f" run {subject.run}" if isinstance(subject, RunSubject) else normalized_name(subject)


KEY_BYTES: Final = 32
FORM: Final = re.compile(r"s-([0-9a-f]{16})-([A-Za-z0-9_-]{43,})")
SEALED: Final = re.compile(FORM.pattern.encode())
"""Pattern of a sealed text in bytes."""
_ID_DIGITS: Final = 16
_BLOCK: Final = 16
_HEAD_BYTES: Final = 4
_PURPOSE: Final = b"ranklake subject 1: "


class NotSealedError(RanklakeError):
    """The text was not sealed with this key."""


@dataclass(frozen=True, slots=True)
class SubjectKey:
    """A subject's key of 256 bits, which its repr does not show."""

    secret: bytes = field(repr=False)

    @property
    def id(self) -> str:
        """Id of the key, which reveals neither the key nor the subject."""
        return self._derive(b"id").hex()[:_ID_DIGITS]

    def seal(self, text: str) -> str:
        """Return a sealed text. Raises `EncryptionError` if the package cryptography is missing."""
        raw = text.encode("utf-8", "surrogatepass")
        clear = len(raw).to_bytes(_HEAD_BYTES) + raw
        clear += bytes(-len(clear) % _BLOCK)
        return f"s-{self.id}-{base64.urlsafe_b64encode(self._cipher().encrypt(clear, None)).decode().rstrip('=')}"

    def unseal(self, sealed: str) -> str:
        """Return the text in clear. Raises `NotSealedError`, without the text in its message, and `EncryptionError`."""
        match = FORM.fullmatch(sealed)
        if match is None or match[1] != self.id:
            raise NotSealedError("not sealed with this key")
        cipher = self._cipher()
        try:
            clear = cipher.decrypt(base64.urlsafe_b64decode(f"{match[2]}{'=' * (-len(match[2]) % 4)}"), None)
        except Exception:  # noqa: BLE001 - the library's InvalidTag, or invalid base64
            raise NotSealedError("not sealed with this key") from None
        size = int.from_bytes(clear[:_HEAD_BYTES])
        return bytes(clear[_HEAD_BYTES : _HEAD_BYTES + size]).decode("utf-8", "surrogatepass")

    def _derive(self, purpose: bytes, digest: str = "sha256") -> bytes:
        return hmac.digest(self.secret, _PURPOSE + purpose, digest)

    def _cipher(self) -> Any:  # noqa: ANN401 - a class of a library that may be absent
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # optional, and slow to import
        except ImportError as error:
            hint = "pip install 'ranklake[encryption]'"
            raise EncryptionError("columns under keys of subjects need the package cryptography", hint=hint) from error
        return AESSIV(self._derive(b"seal", "sha512"))


def unseal_text(text: str, keys: Mapping[str, SubjectKey]) -> str | None:
    """Return a sealed text in clear; None if none of the keys, given by their ids, opens it."""
    key = keys.get(sealed_by(text) or "")
    try:
        return None if key is None else key.unseal(text)
    except NotSealedError:
        return None


def sealed_by(text: str) -> str | None:
    """Return the id of the key in a sealed text; None for other texts."""
    match = FORM.fullmatch(text)
    return match[1] if match else None
