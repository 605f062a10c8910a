"""Artifact row: the columns of ``artifacts`` that every action has, and those of an action that failed."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ranklake.capture.assets.location import Place, shown_place
from ranklake.capture.common.values import integer, json_text, plain, redacted, redacted_name, text
from ranklake.capture.series.series import checked
from ranklake.redaction.redact import redact_names

Columns = dict[str, Any]

KINDS: Final = frozenset({"checkpoint", "model", "profile", "dump", "plot", "dataset", "log", "other"})
NOT_READ_BACK: Final = "it is in a store, and is not read back unasked"
_LONGEST: Final = 4096


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
        "name": checked(name),
        "kind": kind if kind in KINDS else "other",
        "action": action,
        "uri": shown_place(place),
        "step": None if step is None else integer(step),
        "inputs": json_text([redacted_name(one, 80) for one in inputs] or None),
        "attributes": redact_names(plain(dict(attributes or {}))),
    }


def failure_columns(error: BaseException | None, spent_ns: int | None) -> Columns:
    """Return what an exception says, redacted, and how long it took until then."""
    told: Columns = {"duration_ns": spent_ns, "blocking_ns": spent_ns}
    if error is not None:
        kind = type(error)
        told |= {"exception_type": text(getattr(kind, "__qualname__", kind), 256)}
        told |= {"exception_message": redacted(error, _LONGEST)}
    return told


def attributes_text(attributes: Mapping[str, object], why: Mapping[str, str]) -> str | None:
    """Return the JSON of attributes, with why columns have no value."""
    return json_text({**attributes, "unavailable": dict(why)} if why else dict(attributes) or None)
