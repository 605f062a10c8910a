"""Tokens of profiles and pages, and links by which somebody reads one file of an artifact until a time.

    a row of `artifacts` that the role sees ──▶ its bytes hashed, and as recorded ──▶ an address for each of its files

What a rank recorded is another's word, and its URI may be of a file that is none of its own. So a link is only made to
bytes that have the digest that was recorded, which nobody knows who never had them; below places that the operator
allows; and never into the lake, a spool, an archive or a share, whose files are named by their digests.

Where the role sees the column ``uri`` as it is, and the store signs addresses, the link leads there. Else the sharing
server gives the bytes, and the address holds no word of where they are.

Tokens of profiles and pages, and signatures of addresses of files and artifacts: what a keyed hash says, for a time.

    <base64 of JSON>.<HMAC-SHA256 under a key of [shares] key, for this purpose alone>

Nothing is stored: whoever has the key can make them, and nobody else. To end all of them, change the key.
"""

import base64
import binascii
import hmac
import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import IO, Any, Final, cast

from ranklake.allowed import AllowedPlaces, allowed_places
from ranklake.artifacts import verify
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.audit import clock
from ranklake.lake.query.roles import Role
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.retention.archive.register import archive_places
from ranklake.retention.shares.register import shares
from ranklake.segments.envelope import Key, MissingKeyError
from ranklake.segments.keys import Keyring, read_keyring

PROFILE: Final = b"ranklake sharing 1: profile"
FILE: Final = b"ranklake sharing 1: file"
LINK: Final = b"ranklake sharing 1: artifact"
VIEW: Final = b"ranklake sharing 1: pages"
"""Beginning of `view_purpose`."""
_MOST: Final = 4096


class TokenError(RanklakeError):
    """A token that nobody made here, or that expired."""


def view_purpose(marker: bytes) -> bytes:
    """Return the purpose of tokens for the pages of one lake, by its marker: lakes may share a key, but no token."""
    return VIEW + b": " + marker


def sharing_keys(source: str) -> Keyring:
    """Return the keys of ``[shares] key``. Raises `TokenError` where there are none."""
    if not source:
        hint = "name a keyring: file:/path, env:NAME or command:/path (openssl rand -base64 32)"
        raise TokenError("no key to make profiles with", where="[shares] key", hint=hint)
    try:
        return read_keyring(source)
    except MissingKeyError as error:
        raise TokenError(error.what, where=f"[shares] key: {error.where}", hint=error.hint) from None


def seal_token(keys: Keyring, purpose: bytes, facts: Mapping[str, Any]) -> str:
    """Return a token that says some facts, sealed with the newest key."""
    body = _base64_text(json.dumps(dict(facts), sort_keys=True, separators=(",", ":")).encode())
    return f"{body}.{_seal(keys.active, purpose, body)}"


def open_token(keys: Keyring, purpose: bytes, token: str, now: datetime) -> dict[str, Any]:
    """Return what a token says. Raises `TokenError` for one that no key made for this purpose, or that expired."""
    body, _, seal = token.partition(".")
    genuine = (
        len(token) <= _MOST
        and token.isascii()
        and any(hmac.compare_digest(_seal(key, purpose, body), seal) for key in keys.keys)
    )
    if not genuine:
        raise TokenError("this token was not made here")
    try:
        facts: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        ends = datetime.fromisoformat(facts["until"])
        is_over = now >= ends  # a time without a zone cannot be compared
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise TokenError("this token was not made here") from None
    if is_over:
        raise TokenError(f"this token expired at {ends:%Y-%m-%d %H:%M} UTC")
    return facts


def _seal(key: Key, purpose: bytes, body: str) -> str:
    return _base64_text(hmac.digest(hmac.digest(key.secret, purpose, "sha256"), body.encode(), "sha256"))


def _base64_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


MOST: Final = timedelta(days=7)
"""How long a link may be good: no store signs for longer."""
MOST_FILES: Final = 1000
_SEEN: Final = """
SELECT run, name, incarnation, segment, slot FROM artifacts
WHERE action = 'created' AND name = $name AND ($run = '' OR run = $run) ORDER BY ts DESC LIMIT 1
"""
_NAMES: Final = "SELECT DISTINCT name FROM artifacts WHERE action = 'created' ORDER BY name LIMIT 10000"
_STILL_SEEN: Final = """
SELECT run FROM artifacts
WHERE action = 'created' AND incarnation = $incarnation AND segment = $segment AND slot = $slot
"""
_ROW: Final = """
SELECT run, attempt, name, kind, uri, bytes, file_count, sha256, ts FROM artifacts
WHERE action = 'created' AND incarnation = $incarnation AND segment = $segment AND slot = $slot
"""
_KEY: Final = ("incarnation", "segment", "slot")


class LinkError(RanklakeError):
    """An artifact that no link can be made to, or that is not there for who asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link to one file.

    Attributes
    ----------
    file
        Its path in the artifact; empty where the artifact is one file.
    url
        Its address.
    by
        Who answers there: ``store`` or ``server``.
    """

    file: str
    url: str
    by: str

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"file": self.file, "url": self.url, "by": self.by}


class Links:
    """Links to artifacts of a lake.

    Parameters
    ----------
    roles
        Returns all roles as they are now.
    places
        Places that the operator allows: ``[artifacts] allow``.
    """

    def __init__(self, lake: Lake, roles: Callable[[], Mapping[str, Role]], places: tuple[str, ...]) -> None:
        self._lake, self._roles, self._places = lake, roles, places

    def made(
        self, keys: Callable[[], "Keyring"], role: str, name: str, run: str, to: str, until: datetime, endpoint: str
    ) -> tuple[dict[str, Any], list[Link]]:
        """Return the row of an artifact that a role sees, the last of that name, and links to its files.

        Parameters
        ----------
        keys
            Returns what links that the server answers are sealed with; asked for those alone.
        endpoint
            Address of the server.

        Raises `LinkError` where there is none, or its bytes are not those that were recorded,
        `ranklake.allowed.NotAllowedError` for a place that is not allowed, and what its store raises.
        """
        if until > clock.now() + MOST:
            hint = f"write --until {MOST.days}d or less"
            raise LinkError(f"a link is good for {MOST.days} days at most", where="--until", hint=hint)
        seen_by = self._role(role)
        key, row = self._newest_artifact(seen_by, name, run)
        may = self._allowed_places()
        artifact = verify(self._lake.store, row, may)
        if not artifact.is_good:
            raise LinkError(
                artifact.status, where=name, hint="ask whoever made it; ranklake verify-artifact tells more"
            )
        there = Store.at(row["uri"], self._lake.store.storage)
        shows = any(
            sight.column.name == "uri" and sight.visibility == "seen"
            for sight in seen_by.sights(self._lake.contracts()["artifacts"])
        )
        signs = shows and not there.is_local
        facts = {"role": role, "to": to, "until": until.isoformat(), "sha256": row["sha256"], **key}
        made = []
        for path in _files(there, name):
            if there.is_local:
                may.check(path)  # a folder may have links to elsewhere
            file = path.removeprefix(there.root).lstrip("/")
            if signs:
                left_s = max(1, int((until - clock.now()).total_seconds()))
                made.append(Link(file=file, url=str(there.fs.sign(path, expiration=left_s)), by="store"))
            else:
                token = seal_token(keys(), LINK, facts | {"file": file})
                made.append(Link(file=file, url=f"{endpoint.rstrip('/')}/artifacts/{token}", by="server"))
        return row, made

    def file(self, facts: Mapping[str, Any]) -> IO[bytes]:
        """Open the file that a link's token is of. Raises `LinkError` where it is not there now, `NotAllowedError`."""
        gone = LinkError("the artifact is not there, or not for this role any more")
        key = {name: facts.get(name) for name in _KEY}
        if not all(isinstance(one, int) for one in key.values()):
            raise gone
        role = self._role(str(facts.get("role")))
        if not query(self._lake, _STILL_SEEN, key, role=role).num_rows:
            raise gone
        rows = query(self._lake, _ROW, key).to_pylist()
        if not rows or rows[0]["sha256"] != facts.get("sha256"):
            raise gone
        file = str(facts.get("file"))
        if ".." in file.split("/"):
            raise gone
        uri = str(rows[0]["uri"]) + (f"/{file}" if file else "")
        may = self._allowed_places()
        may.check(uri)
        there = Store.at(uri, self._lake.store.storage)
        if not there.fs.isfile(there.root):
            raise gone
        if not there.is_local:
            return cast("IO[bytes]", there.fs.open(there.root, "rb", cache_type="none"))
        held = open(os.open(there.root, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115, PTH123
        try:  # a link or a pipe may have come in its place since
            may.check(f"/proc/self/fd/{held.fileno()}")
            if not stat.S_ISREG(os.fstat(held.fileno()).st_mode):
                raise gone
        except RanklakeError:
            held.close()
            raise
        return held

    def _role(self, name: str) -> Role:
        known = self._roles()
        if name not in known:
            raise LinkError(f"unknown role {name!r}", where="ROLE", hint=did_you_mean(name, known))
        return known[name]

    def _newest_artifact(self, role: Role, name: str, run: str) -> tuple[dict[str, Any], dict[str, Any]]:
        if not role.sees("artifacts"):
            hint = f"ranklake roles explain {role.name} artifacts"
            raise LinkError(f"role {role.name} does not see artifacts", where="ROLE", hint=hint)
        rows = query(self._lake, _SEEN, {"name": name, "run": run}, role=role).to_pylist()
        if not rows:
            names = query(self._lake, _NAMES, role=role).column("name").to_pylist()
            hint = did_you_mean(name, names) or "names are in the column name of artifacts"
            raise LinkError(f"role {role.name} sees no such artifact", where=name, hint=hint)
        key = {one: rows[0][one] for one in _KEY}
        return key, query(self._lake, _ROW, key).to_pylist()[0]

    def _allowed_places(self) -> AllowedPlaces:
        """Return what links may lead to: no place that holds rows."""
        archived = (place.address for place in archive_places(self._lake.tables))
        shared = (share.uri for share in shares(self._lake.store))
        closed = (self._lake.store.address, *self._lake.config.spools, *archived, *shared)
        return allowed_places(self._places, (), closed)


def _files(there: Store, name: str) -> list[str]:
    if there.fs.isfile(there.root):
        return [there.root]
    paths = sorted(there.fs.find(there.root))
    if not paths:
        raise LinkError("it has no files", where=name)
    if len(paths) > MOST_FILES:
        raise LinkError(f"it has more than {MOST_FILES} files", where=name, hint="pack them into one, and record it")
    return paths
