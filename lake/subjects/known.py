"""What a lake remembers of its columns under keys of subjects.

<lake>/subjects.json              columns that were ever stored under keys
"""

import json
from typing import TYPE_CHECKING, Final

from ranklake.lake.storage.reachability import LakeError
from ranklake.lake.storage.rewriting import overwrite

if TYPE_CHECKING:
    from ranklake.lake.storage.store import Lake

KNOWN: Final = "subjects.json"
FORMAT: Final = 1


class SubjectKeysError(LakeError):
    """Keys of subjects that are not there, or not what was written. Nothing was stored, and nothing forgotten."""


def known_columns(lake: "Lake") -> dict[str, str]:
    """Return the columns of a lake that were ever stored under keys of subjects: whose, by ``table.column``.

    Raises `SubjectKeysError` where the file cannot be read.
    """
    try:
        said = json.loads(lake.fs.cat_file(lake.path(KNOWN)))
        return {str(name): str(by) for name, by in said["columns"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        mend = "write it again: the columns under [subjects], each with the column that names whose it is"
        what = "what says which columns are under keys is damaged"
        raise SubjectKeysError(what, where=lake.path(KNOWN), mend=mend) from None


def know(lake: "Lake", columns: dict[str, str]) -> None:
    """Write down that columns are under keys of subjects, with those that are already."""
    known = known_columns(lake)
    if columns.items() <= known.items():
        return
    said = json.dumps({"format": FORMAT, "columns": {**known, **columns}}, sort_keys=True).encode()
    if known or not lake.put_if_absent(KNOWN, said):
        overwrite(lake.fs, lake.path(KNOWN), said, local=lake.is_local)
