"""The Delta Sharing server as an ASGI application, which serves the share of a role to holders of its profile.

A profile gives access to the share of its role; other shares answer as if they did not exist. The address of a file is
valid for an hour and for this file only. Tokens and addresses are not logged.

In the protocol a role is a share with one schema, ``tables``.
https://github.com/delta-io/delta-sharing/blob/main/PROTOCOL.md
"""

import io
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ranklake.allowed import NotAllowedError
from ranklake.errors import RanklakeError
from ranklake.lake.audit import clock
from ranklake.lake.store.store import Store
from ranklake.lake.store.tables import Tables
from ranklake.lake.tables.live_files import DATA_PATH, files
from ranklake.lake.tables.tables import latest
from ranklake.retention.shares.place import open_place
from ranklake.retention.shares.register import Share, shares
from ranklake.retention.shares.server.links import (
    FILE,
    LINK,
    PROFILE,
    LinkError,
    Links,
    TokenError,
    open_token,
    seal_token,
)
from ranklake.retention.shares.shared_table import shared_table_names

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.segments.keys import Keyring


SCHEMA: Final = "tables"
_FILE: Final = re.compile(DATA_PATH)
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")


class NotThereError(RanklakeError):
    """A share, schema or table does not exist, or the client has no access to it."""


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A data file of a shared table: its path in the table, date, bytes and rows."""

    path: str
    day: str
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at a version: its metadata as in the protocol, and its files."""

    version: int
    metadata: dict[str, Any]
    files: tuple[SharedFile, ...]


class SharedTables:
    """The shares of a lake, with a cache of the tables' newest versions."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._lock = threading.Lock()
        self._places: dict[str, Tables] = {}
        self._snapshots: dict[tuple[str, str], tuple[tuple[str, int], Snapshot]] = {}

    def place(self, role: str) -> Store:
        """Return the place of a role's share. Raises `NotThereError`."""
        return self._open_role(role).store

    def _open_role(self, role: str) -> Tables:
        share = self._share(role)
        with self._lock:
            if share.uri not in self._places:
                self._places[share.uri] = Tables(open_place(self._store, share.uri))
            return self._places[share.uri]

    def tables(self, role: str) -> list[str]:
        """Return the tables of a share, by name. Raises `NotThereError`."""
        return sorted(shared_table_names(self.place(role)))

    def file(self, role: str, table: object, path: object) -> str:
        """Return the path of a data file of a shared table, which may be deleted. Raises `NotThereError`."""
        if not _NAME.fullmatch(str(table)) or not _FILE.fullmatch(str(path)):
            raise NotThereError("no data file of a share")
        return self.place(role).path("tables", str(table), str(path))

    def snapshot(self, role: str, table: str) -> Snapshot:
        """Return the newest version of a table. Raises `NotThereError`."""
        place = self._open_role(role)
        with self._lock:  # so that concurrent requests read a new version once
            handle = latest(place, table) if _NAME.fullmatch(table) else None
            if handle is None:
                raise NotThereError(f"no table {table!r} in this share")
            mark = (str(handle.metadata().id), handle.version())
            cached = self._snapshots.get((place.store.uri, table))
            if cached is None or cached[0] != mark:
                cached = self._snapshots[place.store.uri, table] = (mark, _snapshot(handle))
            return cached[1]

    def _share(self, role: str) -> Share:
        share = next((share for share in shares(self._store) if share.role == role), None)
        if share is None:
            raise NotThereError("no such share")
        return share


def _snapshot(handle: "DeltaTable") -> Snapshot:
    table = handle.metadata()
    metadata = {
        "id": str(table.id),
        "name": table.name,
        "format": {"provider": "parquet"},
        "schemaString": handle.schema().to_json(),
        "partitionColumns": list(table.partition_columns),
        "configuration": {},
    }
    live = files(handle)
    columns = [live[name].to_pylist() for name in ("path", "date", "size_bytes", "num_records")]
    shared = (SharedFile(path, day.isoformat(), size, rows) for path, day, size, rows in zip(*columns, strict=True))
    return Snapshot(handle.version(), metadata, tuple(shared))


def metadata_lines(snapshot: Snapshot) -> Iterator[str]:
    """Yield protocol and metadata of a table as lines of JSON."""
    yield json.dumps({"protocol": {"minReaderVersion": 1}})
    yield json.dumps({"metaData": snapshot.metadata})


def file_lines(snapshot: Snapshot, most: int | None, url: Callable[[SharedFile], tuple[str, int]]) -> Iterator[str]:
    """Yield the files of a table as lines of JSON.

    Parameters
    ----------
    most
        Number of rows after which to stop; None for all files.
    url
        Returns the URL of a file and its expiration in milliseconds since 1970.
    """
    rows = 0
    for file in snapshot.files:
        if most is not None and rows >= most:
            return
        rows += file.rows
        address, until = url(file)
        facts = {"url": address, "id": file.path, "partitionValues": {"date": file.day}, "size": file.size_bytes}
        stats = json.dumps({"numRecords": file.rows})
        yield json.dumps({"file": {**facts, "stats": stats, "expirationTimestamp": until}})


PREFIX: Final = "/delta-sharing"
FILE_S: Final = 3600
_MOST_BYTES: Final = 2**20
_LINES: Final = "application/x-ndjson; charset=utf-8"
_BYTES: Final = "application/octet-stream"
_PIECE: Final = 2**20
_VERSION: Final = "Delta-Table-Version"
_MOMENTS: Final = (
    "version", "timestamp", "startingVersion", "startingTimestamp", "endingVersion", "endingTimestamp",
)  # fmt: skip
Refusal = Callable[[str, str], str]
"""Takes a role and a person; returns why the person may not read the role's share now, empty if allowed."""


def sharing_app(store: "Store", keys: "Keyring", refusal: Refusal, links: Links | None = None) -> Starlette:
    """Return the server of a lake's shares.

    Parameters
    ----------
    keys
        Keys of the tokens in profiles and addresses of files.
    refusal
        Called for each request with the role and the person of the token.
    links
        Opens artifacts for links; None to serve no links.
    """
    api = _Api(store, keys, refusal)
    table = "/shares/{share}/schemas/{schema}/tables/{table}"
    routes = [
        Route(f"{PREFIX}/shares", api.authenticated(api.list_shares)),
        Route(f"{PREFIX}/shares/{{share}}", api.authenticated(api.get_share)),
        Route(f"{PREFIX}/shares/{{share}}/schemas", api.authenticated(api.list_schemas)),
        Route(f"{PREFIX}/shares/{{share}}/all-tables", api.authenticated(api.list_tables)),
        Route(f"{PREFIX}/shares/{{share}}/schemas/{{schema}}/tables", api.authenticated(api.list_tables)),
        Route(f"{PREFIX}{table}/version", api.authenticated(api.version)),
        Route(f"{PREFIX}{table}", api.authenticated(api.version), methods=["HEAD"]),
        Route(f"{PREFIX}{table}/metadata", api.authenticated(api.metadata)),
        Route(f"{PREFIX}{table}/query", api.authenticated(api.query), methods=["POST"]),
        Route(f"{PREFIX}/files/{{token}}", api.file),
    ]
    if links is not None:
        routes.append(Route(f"{PREFIX}/artifacts/{{token}}", partial(api.artifact, links)))
    return Starlette(routes=routes)


class _UnfitError(ValueError):
    """A request is invalid."""


class _Api:
    def __init__(self, store: "Store", keys: "Keyring", refusal: Refusal) -> None:
        self._served, self._keys, self._refusal = SharedTables(store), keys, refusal

    def authenticated(self, work: Callable[[Request, str], Response]) -> Callable[[Request], Any]:
        """Return an endpoint that checks the token, calls `work` with request and role, and answers errors as JSON."""

        def answer(request: Request, body: Any) -> Response:  # noqa: ANN401 - what a client sent
            try:
                role = self._role(request)
                request.state.body = body
                return work(request, role)
            except TokenError as error:
                return _fault(401, "UNAUTHENTICATED", error.what)
            except NotThereError as error:
                return _fault(404, "RESOURCE_DOES_NOT_EXIST", error.what)
            except _UnfitError as error:
                return _fault(400, "INVALID_PARAMETER_VALUE", str(error))
            except RanklakeError:
                return _fault(503, "TEMPORARILY_UNAVAILABLE", "the share cannot be read now")

        async def endpoint(request: Request) -> Response:
            try:
                body = await _body(request) if request.method == "POST" else b""
            except ClientDisconnect:  # the answer reaches nobody
                return Response(status_code=400)
            if body is None:
                return _fault(413, "INVALID_PARAMETER_VALUE", f"a query takes at most {_MOST_BYTES} bytes")
            return await run_in_threadpool(answer, request, body)

        return endpoint

    def _role(self, request: Request) -> str:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            raise TokenError("no bearer token")
        facts = open_token(self._keys, PROFILE, token.strip(), clock.now())
        role = self._role_of(facts)
        request.state.token = facts
        share = request.path_params.get("share", role)
        if share != role or request.path_params.get("schema", SCHEMA) != SCHEMA:
            raise NotThereError("no such share or schema")
        return role

    def _role_of(self, facts: Mapping[str, Any]) -> str:
        """Return the role of a token. Raises `TokenError` if its person may not read the share now."""
        role, person = str(facts.get("role")), str(facts.get("to"))
        if reason := self._refusal(role, person):
            raise TokenError(reason)
        return role

    def list_shares(self, _request: Request, role: str) -> Response:
        """Answer with the one share of the profile."""
        return JSONResponse({"items": [{"name": role, "id": role}]})

    def get_share(self, _request: Request, role: str) -> Response:
        """Answer with the share."""
        self._served.place(role)
        return JSONResponse({"share": {"name": role, "id": role}})

    def list_schemas(self, _request: Request, role: str) -> Response:
        """Answer with the one schema."""
        return JSONResponse({"items": [{"name": SCHEMA, "share": role}]})

    def list_tables(self, _request: Request, role: str) -> Response:
        """Answer with the tables."""
        where = {"share": role, "schema": SCHEMA}
        return JSONResponse({"items": [{"name": name, **where} for name in self._served.tables(role)]})

    def version(self, request: Request, role: str) -> Response:
        """Answer with the version of a table in a header."""
        _refuse_history(request.query_params)
        return Response(headers={_VERSION: str(self._snapshot(request, role).version)})

    def metadata(self, request: Request, role: str) -> Response:
        """Answer with protocol and metadata of a table."""
        _refuse_history(request.query_params)
        return _lines(snapshot := self._snapshot(request, role), metadata_lines(snapshot))

    def query(self, request: Request, role: str) -> Response:
        """Answer with the files of the newest version of a table. Predicates are only hints and are ignored."""
        body = _object(request.state.body)
        _refuse_history(body)
        most = body.get("limitHint")
        if most is not None and (type(most) is not int or most < 0):
            raise _UnfitError("limitHint is a number of rows")
        snapshot = self._snapshot(request, role)
        token = request.state.token
        until = min(clock.now() + timedelta(seconds=FILE_S), datetime.fromisoformat(token["until"]))
        url = partial(self._url, request, role, token.get("to"), request.path_params["table"], until)
        return _lines(snapshot, [*metadata_lines(snapshot), *file_lines(snapshot, most, url)])

    def _snapshot(self, request: Request, role: str) -> Snapshot:
        return self._served.snapshot(role, request.path_params["table"])

    def _url(
        self, request: Request, role: str, to: str, table: str, until: datetime, file: SharedFile
    ) -> tuple[str, int]:
        """Return the URL of a file and its expiration: at the store if it signs URLs, otherwise at this server."""
        place, ends = self._served.place(role), int(until.timestamp() * 1000)
        if not place.is_local:
            left_s = max(1, int((until - clock.now()).total_seconds()))
            return str(place.fs.sign(place.path("tables", table, file.path), expiration=left_s)), ends
        facts = {"role": role, "to": to, "table": table, "path": file.path, "until": until.isoformat()}
        return f"{request.base_url}{PREFIX.lstrip('/')}/files/{seal_token(self._keys, FILE, facts)}", ends

    def file(self, request: Request) -> Response:
        """Answer with the bytes of a file, or a range of them."""
        try:
            facts = open_token(self._keys, FILE, request.path_params["token"], clock.now())
            path = self._served.file(self._role_of(facts), facts.get("table"), facts.get("path"))
        except TokenError as error:
            return _fault(401, "UNAUTHENTICATED", error.what)
        except NotThereError as error:
            return _fault(404, "RESOURCE_DOES_NOT_EXIST", error.what)
        except RanklakeError:
            return _fault(503, "TEMPORARILY_UNAVAILABLE", "the share cannot be read now")
        if not Path(path).is_file():
            return _fault(404, "RESOURCE_DOES_NOT_EXIST", "the table moved on: ask for its files again")
        return FileResponse(path, media_type="application/vnd.apache.parquet")

    def artifact(self, links: Links, request: Request) -> Response:
        """Answer with the bytes of an artifact's file, for who has a link to it."""
        try:
            facts = open_token(self._keys, LINK, request.path_params["token"], clock.now())
            self._role_of(facts)
            file = links.file(facts)
            headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
            if isinstance(file, io.BufferedReader):
                return _OpenFile(file, media_type=_BYTES, headers=headers)
        except TokenError as error:
            return _fault(401, "UNAUTHENTICATED", error.what)
        except (LinkError, NotAllowedError, FileNotFoundError):
            return _fault(404, "RESOURCE_DOES_NOT_EXIST", "the artifact is not there, or not for you any more")
        except (RanklakeError, OSError):
            return _fault(503, "TEMPORARILY_UNAVAILABLE", "the artifact cannot be read now")
        return StreamingResponse(_pieces(file), media_type=_BYTES, headers=headers)


class _OpenFile(FileResponse):
    """A response with an open local file, or a range of it, so that the file cannot be replaced in between."""

    def __init__(self, file: io.BufferedReader, media_type: str, headers: Mapping[str, str]) -> None:
        super().__init__(f"/proc/self/fd/{file.fileno()}", media_type=media_type, headers=headers)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE):
            yield piece


async def _body(request: Request) -> bytes | None:
    """Return the body of a request; None if it is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            return None
    return body


def _refuse_history(parameters: Mapping[str, Any]) -> None:
    """Raise `_UnfitError` for a request for another version or time, since only the newest version exists."""
    if any(parameters.get(name) is not None for name in _MOMENTS):
        raise _UnfitError("a share has no history: leave version and timestamp out")


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw or b"{}")
    except (ValueError, RecursionError):
        raise _UnfitError("the body is no JSON") from None
    if not isinstance(body, dict):
        raise _UnfitError("the body is no object")
    return body


def _lines(snapshot: Snapshot, lines: Any) -> Response:  # noqa: ANN401 - any iterable of lines
    body = "".join(f"{line}\n" for line in lines)
    return Response(body, media_type=_LINES, headers={_VERSION: str(snapshot.version)})


def _fault(status: int, code: str, what: str) -> Response:
    return JSONResponse({"errorCode": code, "message": what}, status_code=status)
