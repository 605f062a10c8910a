"""Whether a place lies in a lake or its spools, or around one of them."""

from collections.abc import Iterator

from ranklake.lake.store.store import Lake


def overlaps(lake: Lake, place: Lake) -> bool:
    """Say whether a place lies in the lake or a spool of it, or around one."""
    roots = [lake.root, *_spool_roots(lake)] if lake.is_local == place.is_local else []
    return any(_lies_in(place.root, root) or _lies_in(root, place.root) for root in roots)


def _spool_roots(lake: Lake) -> Iterator[str]:
    for uri in lake.config.spools:
        spool = Lake.place(uri, lake.storage)
        if spool.is_local == lake.is_local:
            yield spool.root


def _lies_in(inner: str, outer: str) -> bool:
    return f"{inner}/".startswith(f"{outer}/")
