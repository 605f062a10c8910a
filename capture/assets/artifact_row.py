"""Artifact row: the columns of ``artifacts`` that every action has; places and texts as columns have them."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ranklake.capture.common.values import integer, json_text, redacted_name, redacted_text, text, to_json
from ranklake.capture.lanes.series import check_name
from ranklake.redaction.redact import redact_names, redact_uri

Place = str | os.PathLike[str]
_LONGEST: Final = 1024
_LONGEST_MESSAGE: Final = 4096


def short_text(value: object) -> str | None:
    """Return a text as columns have it, redacted and cut; None for None."""
    return None if value is None else redacted_text(value, _LONGEST)


def shown_place(place: Place) -> str:
    """Return a place as others can find it: a URI without its user, or an absolute path."""
    shown = os.fspath(place)
    return text(redact_uri(text(shown if "://" in shown else os.path.abspath(shown))), 4096)  # noqa: PTH100 - links stay


def last_part(uri: str) -> str:
    """Return the last part of a path or a URI."""
    return uri.rstrip("/").rpartition("/")[2]


def given_digest(sha256: str) -> str | None:
    """Return a SHA-256 that a caller gave as rows have it: lower case, without the algorithm's name before it."""
    return redacted_text(sha256.strip().lower().removeprefix("sha256:"), 64)


Columns = dict[str, Any]

KINDS: Final = frozenset({"checkpoint", "model", "profile", "dump", "plot", "dataset", "log", "other"})
NOT_READ_BACK: Final = "it is in a store, and is not read back unasked"


def artifact_row(
    action: str,
    name: str,
    place: Place,
    *,
    kind: str,
    step: object = None,
    inputs: Sequence[str] = (),
    attributes: Mapping[str, object] | None = None,
) -> Columns:
    """Return what is known of an artifact at once; ``attributes`` is a mapping still, to which reasons are added."""
    return {
        "name": check_name(name),
        "kind": kind if kind in KINDS else "other",
        "action": action,
        "uri": shown_place(place),
        "step": None if step is None else integer(step),
        "inputs": json_text([redacted_name(item, 80) for item in inputs] or None),
        "attributes": redact_names(to_json(dict(attributes or {}))),
    }


def failure_columns(error: BaseException | None, spent_ns: int | None) -> Columns:
    """Return what an exception says, redacted, and how long it took until then."""
    columns: Columns = {"duration_ns": spent_ns, "blocking_ns": spent_ns}
    if error is not None:
        kind = type(error)
        columns |= {"exception_type": text(getattr(kind, "__qualname__", kind), 256)}
        columns |= {"exception_message": redacted_text(error, _LONGEST_MESSAGE)}
    return columns


def attributes_text(attributes: Mapping[str, object], why: Mapping[str, str]) -> str | None:
    """Return the JSON of attributes, with why columns have no value."""
    return json_text({**attributes, "unavailable": dict(why)} if why else dict(attributes) or None)
