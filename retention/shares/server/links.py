"""Links to the files of artifacts, valid until a time, and the tokens of links, profiles and pages.

    a row of `artifacts` that the role sees ──▶ its bytes have the recorded digest? ──▶ an address for each of its files

A rank may record any URI, also one of a file that is not its own. Therefore a link is only made to bytes with the
recorded digest, which only somebody who had the bytes can know, and only below places that the operator allows. It
never leads into the lake, a spool, an archive or a share, since their files are named by their digests.

If the role sees the column ``uri`` unmasked and the store signs URLs, the link leads to the store. Otherwise the
sharing server sends the bytes, and the address does not reveal their place.

A token is JSON with a time limit and a keyed hash:

    <base64 of JSON>.<HMAC-SHA256 under a key of [shares] key, separate for each purpose>

Nothing is stored. Only holders of the key can make tokens; changing the key ends all of them.
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
"""Prefix of `view_purpose`."""
_MOST: Final = 4096


class TokenError(RanklakeError):
    """A token is not genuine, or has expired."""


def view_purpose(marker: bytes) -> bytes:
    """Return the purpose of tokens for the pages of one lake, by its marker. Lakes may share a key, but no tokens."""
    return VIEW + b": " + marker


def sharing_keys(source: str) -> Keyring:
    """Return the keys of ``[shares] key``. Raises `TokenError` if there are none."""
    if not source:
        hint = "name a keyring: file:/path, env:NAME or command:/path (openssl rand -base64 32)"
        raise TokenError("no key to make profiles with", where="[shares] key", hint=hint)
    try:
        return read_keyring(source)
    except MissingKeyError as error:
        raise TokenError(error.what, where=f"[shares] key: {error.where}", hint=error.hint) from None


def seal_token(keys: Keyring, purpose: bytes, facts: Mapping[str, Any]) -> str:
    """Return a token with these facts, under the newest key."""
    body = _base64_text(json.dumps(dict(facts), sort_keys=True, separators=(",", ":")).encode())
    return f"{body}.{_seal(keys.active, purpose, body)}"


def open_token(keys: Keyring, purpose: bytes, token: str, now: datetime) -> dict[str, Any]:
    """Return the facts of a token. Raises `TokenError` if no key made it for this purpose, or if it has expired."""
    body, _, seal = token.partition(".")
    is_genuine = (
        len(token) <= _MOST
        and token.isascii()
        and any(hmac.compare_digest(_seal(key, purpose, body), seal) for key in keys.keys)
    )
    if not is_genuine:
        raise TokenError("this token was not made here")
    try:
        facts: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        ends = datetime.fromisoformat(facts["until"])
        is_expired = now >= ends  # raises for a time without a zone
    except (ValueError, KeyError, TypeError, binascii.Error):
        raise TokenError("this token was not made here") from None
    if is_expired:
        raise TokenError(f"this token expired at {ends:%Y-%m-%d %H:%M} UTC")
    return facts


def _seal(key: Key, purpose: bytes, body: str) -> str:
    return _base64_text(hmac.digest(hmac.digest(key.secret, purpose, "sha256"), body.encode(), "sha256"))


def _base64_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


MOST: Final = timedelta(days=7)
"""Longest validity of a link; stores do not sign for longer."""
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
    """No link can be made to an artifact, or the artifact does not exist for the role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link to one file.

    Attributes
    ----------
    file
        Path of the file in the artifact; empty if the artifact is one file.
    url
        Its address.
    by
        What serves the address: ``store`` or ``server``.
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
        Returns all current roles by name.
    places
        Allowed places: ``[artifacts] allow``.
    """

    def __init__(self, lake: Lake, roles: Callable[[], Mapping[str, Role]], places: tuple[str, ...]) -> None:
        self._lake, self._roles, self._places = lake, roles, places

    def make(
        self, keys: Callable[[], "Keyring"], role: str, name: str, run: str, to: str, until: datetime, endpoint: str
    ) -> tuple[dict[str, Any], list[Link]]:
        """Return the newest row of an artifact that a role sees, and links to the artifact's files.

        Parameters
        ----------
        keys
            Returns the keys of tokens; called only for links to the server.
        endpoint
            Address of the server.

        Raises `LinkError` if there is no such artifact or its bytes have another digest,
        `ranklake.allowed.NotAllowedError` for a place that is not allowed, and the errors of its store.
        """
        if until > clock.now() + MOST:
            hint = f"write --until {MOST.days}d or less"
            raise LinkError(f"a link is good for {MOST.days} days at most", where="--until", hint=hint)
        viewer = self._role(role)
        key, row = self._newest_artifact(viewer, name, run)
        allowed = self._allowed_places()
        artifact = verify(self._lake.store, row, allowed)
        if not artifact.is_good:
            raise LinkError(
                artifact.status, where=name, hint="ask whoever made it; ranklake verify-artifact tells more"
            )
        place = Store.at(row["uri"], self._lake.store.storage)
        sees_uri = any(
            sight.column.name == "uri" and sight.visibility == "seen"
            for sight in viewer.sights(self._lake.contracts()["artifacts"])
        )
        is_signed_by_store = sees_uri and not place.is_local
        facts = {"role": role, "to": to, "until": until.isoformat(), "sha256": row["sha256"], **key}
        links = []
        for path in _files(place, name):
            if place.is_local:
                allowed.check(path)  # a folder may contain links to other places
            file = path.removeprefix(place.root).lstrip("/")
            if is_signed_by_store:
                left_s = max(1, int((until - clock.now()).total_seconds()))
                links.append(Link(file=file, url=str(place.fs.sign(path, expiration=left_s)), by="store"))
            else:
                token = seal_token(keys(), LINK, facts | {"file": file})
                links.append(Link(file=file, url=f"{endpoint.rstrip('/')}/artifacts/{token}", by="server"))
        return row, links

    def file(self, facts: Mapping[str, Any]) -> IO[bytes]:
        """Open the file of a link's token. Raises `LinkError` if the role no longer sees it, and `NotAllowedError`."""
        missing = LinkError("the artifact is not there, or not for this role any more")
        key = {name: facts.get(name) for name in _KEY}
        if not all(isinstance(value, int) for value in key.values()):
            raise missing
        role = self._role(str(facts.get("role")))
        if not query(self._lake, _STILL_SEEN, key, role=role).num_rows:
            raise missing
        rows = query(self._lake, _ROW, key).to_pylist()
        if not rows or rows[0]["sha256"] != facts.get("sha256"):
            raise missing
        path = str(facts.get("file"))
        if ".." in path.split("/"):
            raise missing
        uri = str(rows[0]["uri"]) + (f"/{path}" if path else "")
        allowed = self._allowed_places()
        allowed.check(uri)
        place = Store.at(uri, self._lake.store.storage)
        if not place.fs.isfile(place.root):
            raise missing
        if not place.is_local:
            return cast("IO[bytes]", place.fs.open(place.root, "rb", cache_type="none"))
        file = open(os.open(place.root, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115, PTH123
        try:  # a link or a pipe may have replaced the file
            allowed.check(f"/proc/self/fd/{file.fileno()}")
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise missing
        except RanklakeError:
            file.close()
            raise
        return file

    def _role(self, name: str) -> Role:
        roles = self._roles()
        if name not in roles:
            raise LinkError(f"unknown role {name!r}", where="ROLE", hint=did_you_mean(name, roles))
        return roles[name]

    def _newest_artifact(self, role: Role, name: str, run: str) -> tuple[dict[str, Any], dict[str, Any]]:
        if not role.sees("artifacts"):
            hint = f"ranklake roles explain {role.name} artifacts"
            raise LinkError(f"role {role.name} does not see artifacts", where="ROLE", hint=hint)
        rows = query(self._lake, _SEEN, {"name": name, "run": run}, role=role).to_pylist()
        if not rows:
            names = query(self._lake, _NAMES, role=role).column("name").to_pylist()
            hint = did_you_mean(name, names) or "names are in the column name of artifacts"
            raise LinkError(f"role {role.name} sees no such artifact", where=name, hint=hint)
        key = {column: rows[0][column] for column in _KEY}
        return key, query(self._lake, _ROW, key).to_pylist()[0]

    def _allowed_places(self) -> AllowedPlaces:
        """Return the places that links may lead to, which exclude all places with rows of the lake."""
        archived = (place.address for place in archive_places(self._lake.tables))
        shared = (share.uri for share in shares(self._lake.store))
        closed = (self._lake.store.address, *self._lake.config.spools, *archived, *shared)
        return allowed_places(self._places, (), closed)


def _files(place: Store, name: str) -> list[str]:
    if place.fs.isfile(place.root):
        return [place.root]
    paths = sorted(place.fs.find(place.root))
    if not paths:
        raise LinkError("it has no files", where=name)
    if len(paths) > MOST_FILES:
        raise LinkError(f"it has more than {MOST_FILES} files", where=name, hint="pack them into one, and record it")
    return paths
