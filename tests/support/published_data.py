"""Where the published data lies: `RANKLAKE_PUBLISHED_DATA`, or the folder shared/data beside the repository."""

import csv
import os
from pathlib import Path

DATA = Path(os.environ.get("RANKLAKE_PUBLISHED_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def table(path):
    """Return the rows of a CSV as dicts of texts."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
