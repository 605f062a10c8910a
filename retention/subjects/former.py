"""Keys of runs from before runs had keys of their own: under the name of a person who is called like the run."""

from typing import TYPE_CHECKING

from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.tables import latest
from ranklake.retention.subjects.keys import sealed_by
from ranklake.retention.subjects.known import known_columns
from ranklake.retention.subjects.lineage import Lineage
from ranklake.retention.subjects.store import KeyStore
from ranklake.retention.subjects.whose import folded

if TYPE_CHECKING:
    from collections.abc import Collection

    from ranklake.lake.store.store import Lake


def is_of_run(lake: "Lake", run: str) -> bool | None:
    """Say whether the key of a person who is called like a run is the run's, of an earlier release.

    None where it is a person's, too: it sealed what another column than ``run`` says the owner of. False where no
    column is by run, or there is no such key. Raises as `KeyStore`.
    """
    if "run" not in known_columns(lake).values():
        return False
    store, person = KeyStore(lake), folded(run)
    if not store.left([person]):
        return False
    ids = {one.key.id for one in store.each() if one.key is not None and one.lookup == store.lookup(person)}
    return None if _sealed_a_persons(lake, ids) else True


def _sealed_a_persons(lake: "Lake", ids: "Collection[str]") -> bool:
    """Say whether some keys sealed a live value of a column whose values are of people."""
    lineage, whose = Lineage(lake), known_columns(lake)
    for contract in lake.contracts().values():
        handle = latest(lake, contract.table) if (mine := lineage.stored(contract)) else None
        names = [one.name for one in contract.columns if one.id in mine and whose[mine[one.id]] != "run"]
        for _, rows in read_some(lake, contract, files(handle), names) if handle is not None and names else ():
            every = (text for name in names for text in rows[name].unique().to_pylist() if text is not None)
            if any(sealed_by(text) in ids for text in every):
                return True
    return False
