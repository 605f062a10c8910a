"""Errors for lakes and stores that cannot be used, with a hint, made from the errors of store clients."""

import re
from collections.abc import Mapping
from typing import Final

from ranklake.errors import RanklakeError
from ranklake.redaction.redact import remove_secrets, secrets_in
from ranklake.segments.references import known_secrets

_LONGEST: Final = 400
_COLOUR: Final = re.compile("\x1b" + r"\[\d+m")
_RETRIES: Final = re.compile(r" in [\d.]+\w+, after \d+ retries, max_retries: \d+, retry_timeout: \S+ -")
_TAG: Final = re.compile(r"<[^<>]+>")
_HINT: Final = "check the URI, the network and your rights there"
_NO_CREDENTIALS: Final = "give or check credentials as the store's own tools take them (variables, profile, role)"


class LakeError(RanklakeError):
    """The lake cannot be used."""


class NotALakeError(LakeError):
    """The place does not contain a lake."""


class LostLakeError(LakeError):
    """A lake would be created in a place that contained one before. Nothing was written."""

    def __init__(self, what: str, where: str) -> None:
        hint = (
            "restore it or correct its place; or make a new one, without the holds, the audit log and the deletions "
            "of the other: ranklake ingest --new"
        )
        super().__init__(what, where=where, hint=hint)

    def __reduce__(self) -> tuple[type["LostLakeError"], tuple[str, str]]:
        return type(self), (self.what, self.where)


class LakeUnreachableError(LakeError):
    """The place cannot be read or written.

    Attributes
    ----------
    status
        HTTP status of the store's response; None if there was none.
    """

    status: int | None = None


class UnsafeStoreError(LakeError):
    """The store ignores the condition of conditional writes, so that commits would be lost there."""


def describe(error: BaseException, storage: Mapping[str, str]) -> str:
    """Return a client's error as one line without secrets. Clients quote requests, which may contain signatures."""
    text = str(error).partition(": ParsedLogPath")[0]  # a backtrace of delta-rs may follow
    first, *causes = _COLOUR.sub("", text).split("\u21b3")  # delta-rs puts an arrow before each cause
    links = [(first.splitlines() or [""])[0], *causes]
    line = _RETRIES.sub(":", ": ".join(" ".join(_TAG.sub(" ", link).split()) for link in links))
    return remove_secrets(line or type(error).__name__, [*secrets_in(storage), *known_secrets(storage)])[:_LONGEST]


def unreachable(
    where: str, error: BaseException, storage: Mapping[str, str], *, what: str = "cannot be reached", hint: str = _HINT
) -> LakeUnreachableError:
    """Return the error for a place after a client failed.

    Raise it ``from None``: the client's message may contain secrets that `describe` removes, and logs show causes.
    """
    reason = describe(error, storage)
    if "credential" in f"{type(error).__name__} {reason}".lower():
        hint = _NO_CREDENTIALS
    failure = LakeUnreachableError(f"{what}: {reason}", where=_without_user_info(where), hint=hint)
    failure.status = _status(error)
    return failure


def cannot_write(path: str, error: OSError) -> LakeUnreachableError:
    """Return the error for a file that could not be written, because the place is full or read-only."""
    hint = "make room or get the right to write there, then run it again"
    return LakeUnreachableError(f"cannot be written: {error.strerror or error}", where=path, hint=hint)


def unsafe(where: str) -> UnsafeStoreError:
    """Return the error for a store that ignores the conditions of conditional writes."""
    hint = (
        "use one that honours conditional writes (S3's If-None-Match), and no proxy that drops the header; "
        "Ceph's radosgw honours them only in buckets without versioning"
    )
    return UnsafeStoreError("the store overwrites what it was asked to write only if absent", where=where, hint=hint)


def _status(error: BaseException | None) -> int | None:
    """Return the HTTP status of a client's error or of its causes; None if there is none."""
    while error is not None:
        response = getattr(error, "response", None)
        codes = [getattr(error, name, None) for name in ("status_code", "status", "code")]
        if isinstance(response, Mapping):
            codes.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
        for status in codes:
            if isinstance(status, int):
                return status
        error = error.__cause__
    return None


def _without_user_info(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return uri
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
