"""How old keys are: since they were first seen in use, or since the file that holds them was written."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranklake.lake.store.keys import first_uses, key_ids, key_references

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake

_FILE: Final = "file:"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAge:
    """The key of a setting that is used now.

    Attributes
    ----------
    setting, kind
        Where it is referred to, and what kind of place it comes from; the place stands nowhere.
    age_days
        Days since it was first seen in use, or else since its file was written; None if nobody knows.
    by
        Which of the two.
    unknown, hint
        Why its age is not known, and what to do; empty where it is.
    """

    setting: str
    kind: str
    age_days: int | None = None
    by: str = ""
    unknown: str = ""
    hint: str = ""


def key_ages(lake: "Lake", now: datetime) -> tuple[KeyAge, ...]:
    """Return the ages of all keys that the lake is configured with. Runs helpers of references."""
    return tuple(_ages(lake, now))


def _ages(lake: "Lake", now: datetime) -> Iterator[KeyAge]:
    references, known = key_references(lake.config), first_uses(lake.store)
    ids = dict(key_ids(references))
    for purpose, (setting, reference) in references.items():
        kind = reference.strip().partition(":")[0]
        if purpose not in ids:
            hint = "'ranklake config check' says why"
            yield KeyAge(setting=setting, kind=kind, unknown="it cannot be read here", hint=hint)
            continue
        since = known.get((purpose, ids[purpose][0]))
        written = _modified_time(reference)
        if since is not None:
            yield KeyAge(setting=setting, kind=kind, age_days=(now.date() - since).days, by="first seen in use")
        elif written is not None:
            yield KeyAge(setting=setting, kind=kind, age_days=(now - written).days, by="its file")
        else:
            hint = "'ranklake upkeep' notes it from now on"
            yield KeyAge(setting=setting, kind=kind, unknown="nobody noted when it came into use", hint=hint)


def _modified_time(reference: str) -> datetime | None:
    if not reference.strip().startswith(_FILE):
        return None
    try:
        return datetime.fromtimestamp(Path(reference.strip().removeprefix(_FILE)).stat().st_mtime, UTC)
    except OSError:
        return None
