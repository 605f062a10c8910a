"""The place of a share: a prefix that one lake owns for one role, with Delta tables in it.

    <to>/<role>/ranklake-share.json     whose it is: the lake's number, and the role
    <to>/<role>/tables/<table>/         a Delta table: what the role sees of it

Whoever may read the prefix sees what the role sees, and nothing else.
"""

import json
import re
from typing import Final

from ranklake.errors import RanklakeError
from ranklake.lake.store.files import listed
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.posture import overlaps
from ranklake.lake.store.store import MARKER as LAKE_MARKER
from ranklake.lake.store.store import Store
from ranklake.redaction.redact import has_credential
from ranklake.retention.proposals.identities import owner

MARKER: Final = "ranklake-share.json"
FORMAT: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class ShareError(RanklakeError):
    """A share that cannot be made, or a place that is none of this lake's. Nothing was changed there."""


def share_uri(to: str, role: str) -> str:
    """Return the prefix of a role below a place. Raises `ShareError` for names and URIs that cannot be one."""
    if not _NAME.fullmatch(role):
        hint = "name it in letters, digits, dots, dashes and underscores"
        raise ShareError(f"role {role!r} cannot be the name of a folder", where="ROLE", hint=hint)
    if has_credential(to):
        hint = "take it out, and name it under [storage] by a reference"
        raise ShareError("a credential stands in the URI", where="--to", hint=hint)
    return f"{to.rstrip('/')}/{role}"


def open_place(store: Store, uri: str) -> Store:
    """Return the place of a share, reached as the lake is. Raises `LakeUnreachableError`."""
    return Store.at(uri, store.storage)


def claim(lake: Lake, place: Store, role: str) -> None:
    """Make a place this lake's, for a role; again changes nothing.

    Raises `ShareError` where it is another's, holds something else, or lies in the lake or around it.
    """
    if overlaps(lake, place):
        message = "the place lies in the lake or a spool, or around it"
        raise ShareError(message, where=place.uri, hint="give shares a folder or prefix of their own")
    if not place.fs.exists(place.path(MARKER)):
        if place.fs.exists(place.path(LAKE_MARKER)):
            raise ShareError("a lake is there", where=place.uri, hint="name an empty place")
        if any(not one.path.endswith(".tmp") for one in listed(place.fs, place.root)):
            raise ShareError("the place is not empty, and no share", where=place.uri, hint="name an empty place")
        marker = {"format": FORMAT, "lake": owner(lake.store), "role": role}
        place.put_if_absent(MARKER, json.dumps(marker).encode())
    refuse_other(lake.store, place, role)


def refuse_other(store: Store, place: Store, role: str) -> None:
    """Raise `ShareError` where a place is not this lake's share of a role."""
    try:
        marker = json.loads(place.fs.cat_file(place.path(MARKER)))
        whose_lake, marked_role, made = marker["lake"], marker["role"], marker["format"]
    except FileNotFoundError:
        raise ShareError("no share is there", where=place.uri, hint="make it: ranklake share ROLE --to URI") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        hint = f"restore {MARKER} there, or name an empty place"
        raise ShareError("what says whose share this is cannot be read", where=place.uri, hint=hint) from None
    if made != FORMAT:
        raise ShareError(f"a share of format {made}, and {FORMAT} is known here", where=place.uri, hint="upgrade it")
    if whose_lake != owner(store):
        raise ShareError("another lake owns this share", where=place.uri, hint="name another place")
    if marked_role != role:
        raise ShareError(f"this is the share of role {marked_role!r}", where=place.uri, hint="name another place")
