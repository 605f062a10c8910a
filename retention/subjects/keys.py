"""Keys of subjects: what they seal, and which columns of a lake were ever stored under some.

<lake>/subjects.json              columns that were ever stored under keys, and their ids, which no migration changes
<lake>/subjects/<number>.json     the same with what came since, from 2 on

Each is written once, if nobody wrote it before: of two that add to it at once, the second reads the first one's.
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
    """Keys of subjects that are not there, or not what was written. Nothing was stored, and nothing forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedColumns:
    """What is remembered.

    Attributes
    ----------
    columns
        Columns that were ever stored under keys: whose, by ``table.column`` under the name of that time.
    ids
        Ids of columns in their contracts, of those and of what names whose they are, by ``table.column``. Of a name
        that two columns had, of both.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    ids: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: bytes) -> "KeyedColumns":
        """Return what bytes say. Raises what JSON does, `KeyError`, `TypeError`, `ValueError` and `AttributeError`."""
        facts = json.loads(raw)
        columns = {str(name): str(by) for name, by in facts["columns"].items()}
        ids = {str(name): frozenset(map(int, some)) for name, some in facts["ids"].items()}
        return cls(columns=columns, ids=ids)

    def with_more(self, columns: Mapping[str, str], ids: Mapping[str, Collection[int]]) -> "KeyedColumns":
        """Return what is remembered with other columns, too."""
        every = {name: self.ids.get(name, frozenset()) | set(ids.get(name, ())) for name in {*self.ids, *ids}}
        return KeyedColumns(columns={**self.columns, **columns}, ids=every)

    def raw(self) -> bytes:
        """Return its bytes."""
        facts: dict[str, Any] = {"format": FORMAT, "columns": dict(self.columns)}
        return json.dumps({**facts, "ids": {name: sorted(some) for name, some in self.ids.items()}}).encode()


def known(store: "Store") -> KeyedColumns:
    """Return what a lake remembers. Raises `SubjectKeysError` where a file of it cannot be read."""
    return _all(store)[0]


def _all(store: "Store") -> tuple[KeyedColumns, int]:
    """Return what a lake remembers, and how many files say it."""
    known, files = KeyedColumns(), 0
    while (raw := _raw(store, files + 1)) is not None:
        try:
            part = KeyedColumns.parse(raw)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            hint = "write it again: columns, each with the one that names whose it is, and the ids of both in contracts"
            message = "what says which columns are under keys is damaged"
            raise SubjectKeysError(message, where=store.path(_name(files + 1)), hint=hint) from None
        known, files = known.with_more(part.columns, part.ids), files + 1
    return known, files


def _raw(store: "Store", number: int) -> bytes | None:
    try:
        return bytes(store.fs.cat_file(store.path(_name(number))))
    except FileNotFoundError:
        return None


def _name(number: int) -> str:
    return KNOWN if number == 1 else f"{FOLDER}/{number:010}.json"


def known_columns(store: "Store") -> Mapping[str, str]:
    """Return the columns that were ever stored under keys: whose, by ``table.column``. Raises as `known`."""
    return known(store).columns


def know(store: "Store", columns: Mapping[str, str], ids: Mapping[str, Collection[int]]) -> None:
    """Write down columns under keys of subjects beside those already known; arguments as `KeyedColumns` has."""
    while True:
        before, files = _all(store)
        after = before.with_more(columns, ids)
        if after == before or store.put_if_absent(_name(files + 1), after.raw()):
            return


def today(contract: "Contract", name: str) -> frozenset[int]:
    """Return the id of the column that has a name today."""
    return frozenset({contract.column(name).id}) if name in contract else frozenset()


class Lineage:
    """The columns of a lake that were ever stored under keys, as contracts have them now.

    Raises as `known`.
    """

    def __init__(self, store: "Store") -> None:
        self._known = known(store)

    def ids(self, contract: "Contract", name: str) -> frozenset[int]:
        """Return the ids of the columns that a name stands for, or stood for when something was stored under keys."""
        return self._known.ids.get(f"{contract.table}.{name}") or today(contract, name)

    def current_name(self, contract: "Contract", name: str) -> str:
        """Return what a column is called now; the name itself where it has it still, or nobody knows."""
        if name in contract:
            return name
        ids = self.ids(contract, name)
        names = [column.name for column in contract.columns if column.id in ids]
        return names[0] if len(names) == 1 else name

    def is_gone(self, contract: "Contract", name: str) -> bool:
        """Return whether a column was dropped."""
        return bool({one.id for one in contract.retired} & self.ids(contract, name))

    def stored_columns(self, contract: "Contract") -> Mapping[int, str]:
        """Return the columns of a table that were ever stored under keys, by id, each as it was called then."""
        former: dict[int, str] = {}
        for qualified in sorted(self._known.columns):
            table, _, name = qualified.partition(".")
            if table == contract.table:
                former |= {id_: qualified for id_ in self.ids(contract, name) if id_ not in former}
        return former

    def sealed_columns(self, contract: "Contract") -> "Mapping[str, Column]":
        """Return the columns of a contract that were ever stored under keys, by ``table.column`` as of today."""
        ids = self.stored_columns(contract)
        return {f"{contract.table}.{column.name}": column for column in contract.columns if column.id in ids}


@dataclass(frozen=True, slots=True)
class RunSubject:
    """The subject of values of which no person is named: their run, whose name tells cases apart."""

    run: str


SubjectName = str | RunSubject
"""A person, by name, or a run."""


def normalized_name(name: str) -> str:
    """Return a person's name as it is compared: case, form of its letters, and spaces around it do not count."""
    return normalize("NFC", normalize("NFD", name.strip()).casefold()).strip()


def lookup_text(subject: SubjectName) -> str:
    """Return what a subject's key is looked up by; no person's begins with a space, and every run's does."""
    return f" run {subject.run}" if isinstance(subject, RunSubject) else normalized_name(subject)


KEY_BYTES: Final = 32
FORM: Final = re.compile(r"s-([0-9a-f]{16})-([A-Za-z0-9_-]{43,})")
SEALED: Final = re.compile(FORM.pattern.encode())
"""A sealed text among other bytes."""
_ID_DIGITS: Final = 16
_BLOCK: Final = 16
_HEAD_BYTES: Final = 4
_PURPOSE: Final = b"ranklake subject 1: "


class NotSealedError(RanklakeError):
    """A text that this key did not seal."""


@dataclass(frozen=True, slots=True)
class SubjectKey:
    """A subject's key of 256 bits. Its repr holds no key."""

    secret: bytes = field(repr=False)

    @property
    def id(self) -> str:
        """Name the key; it says nothing about it, nor about the subject."""
        return self._derive(b"id").hex()[:_ID_DIGITS]

    def seal(self, text: str) -> str:
        """Return a text as it is stored. Raises `EncryptionError` without the library."""
        raw = text.encode("utf-8", "surrogatepass")
        clear = len(raw).to_bytes(_HEAD_BYTES) + raw
        clear += bytes(-len(clear) % _BLOCK)
        return f"s-{self.id}-{base64.urlsafe_b64encode(self._cipher().encrypt(clear, None)).decode().rstrip('=')}"

    def unseal(self, sealed: str) -> str:
        """Return the text that was sealed. Raises `NotSealedError`, which quotes nothing, and `EncryptionError`."""
        match = FORM.fullmatch(sealed)
        if match is None or match[1] != self.id:
            raise NotSealedError("not sealed with this key")
        cipher = self._cipher()
        try:
            clear = cipher.decrypt(base64.urlsafe_b64decode(f"{match[2]}{'=' * (-len(match[2]) % 4)}"), None)
        except Exception:  # noqa: BLE001 - InvalidTag, whose class is the library's; no base64
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
    """Return what a sealed text says; None where none of some keys, by their ids, sealed it."""
    key = keys.get(sealed_by(text) or "")
    try:
        return None if key is None else key.unseal(text)
    except NotSealedError:
        return None


def sealed_by(text: str) -> str | None:
    """Return the id of the key that a text names as its own; None where it has not the form."""
    match = FORM.fullmatch(text)
    return match[1] if match else None
