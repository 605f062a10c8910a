"""Media on a run's page: images as images, tables as tables, confusion matrices as heat maps, texts as texts.

Rows may be forged or masked: invalid media are reported as text.
"""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final

from ranklake.capture.assets.image_file import image_file
from ranklake.capture.common.values import BadValueError
from ranklake.insight.runs.asking import Row
from ranklake.insight.runs.media import Media, key
from ranklake.printable import counted
from ranklake.views.words import number_text

_MOST_ROWS: Final = 50
_MOST_COLUMNS: Final = 20
_MOST_CLASSES: Final = 40
_MOST_CELLS: Final = 12_000
"""Most cells of all tables and matrices of a page: half a megabyte."""
_MOST_PIXELS: Final = 1 << 25
"""Most pixels of all images of a page: a browser needs four bytes for each."""
_MOST_OF_CELL: Final = 200
_MOST_CHARACTERS: Final = 4000
_LEVELS: Final = 10
"""Number of shades of a heat map, which are classes of the style sheet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """A medium for the template; one of `image`, `table`, `matrix`, `text` and `unknown` is set.

    Attributes
    ----------
    about
        Its step, rank and attempt.
    more
        Text about omitted parts; else empty.
    image
        Data URL of an image, and its width and height.
    table
        Column titles, and rows of cells.
    matrix
        Labels, and rows of cells: a number as text, and its shade from 0 to `_LEVELS`.
    text
        Its lines.
    unknown
        Why it is not drawn.
    """

    name: str
    kind: str
    about: str
    caption: str = ""
    more: str = ""
    image: tuple[str, int, int] | None = None
    table: tuple[Sequence[str], Sequence[Sequence[str]]] | None = None
    matrix: tuple[Sequence[str], Sequence[Sequence[tuple[str, int]]]] | None = None
    text: Sequence[str] | None = None
    unknown: str = ""


def drawable_media(media: Media) -> Iterator[Medium]:
    """Yield the media with bytes, grouped by name, the latest first."""
    room, pixels = _MOST_CELLS, _MOST_PIXELS
    for row in sorted(
        media.listed.rows, key=lambda row: (row["name"], row["kind"])
    ):  # a stable sort keeps the latest first
        held = media.held.get(key(row))
        if held is None:
            continue
        medium = _medium(row, held, media.captions.get(key(row), ""))
        cells = sum(len(row) for _, rows in (medium.table or ("", ()), medium.matrix or ("", ())) for row in rows)
        _, width, height = medium.image or ("", 0, 0)
        if cells > room or width * height > pixels:
            yield replace(medium, image=None, table=None, matrix=None, more="", unknown="Not drawn: the page is full.")
        else:
            room, pixels = room - cells, pixels - width * height
            yield medium


def _medium(row: Row, held: str, caption: str) -> Medium:
    step = "outside of steps" if row["step"] is None else f"step {row['step']:,}"
    common = {"name": row["name"], "kind": row["kind"].replace("_", " "), "caption": caption}
    about = f"{step}, rank {row['rank']}" + (f", attempt {row['attempt']}" if row["attempt"] else "")
    try:
        drawing = _DRAWN.get(row["kind"], _text)(held)
    except (BadValueError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        reason = str(error) if isinstance(error, BadValueError) else "what is stored is damaged"
        drawing = {"unknown": f"Not drawn: {reason}."}
    return Medium(about=about, **common, **drawing)


def _image(held: str) -> Mapping[str, Any]:
    try:
        file = image_file(base64.b64decode(held, validate=True))
    except binascii.Error as error:
        raise BadValueError("no base64") from error
    address = f"data:{file.media_type};base64,{held}"
    return {"image": (address, file.width, file.height)}


def _table(held: str) -> Mapping[str, Any]:
    table = json.loads(held)
    heads = list(map(_cell, table["columns"]))
    rows = [list(map(_cell, row[:_MOST_COLUMNS])) for row in table["rows"][:_MOST_ROWS]]
    left = [
        f"the first {most} of {counted(count, noun)}"
        for count, most, noun in (
            (len(table["rows"]), _MOST_ROWS, "row"),
            (len(heads), _MOST_COLUMNS, "column"),
        )
        if count > most
    ]
    return {"table": (heads[:_MOST_COLUMNS], rows), "more": ", ".join(left)}


def _cell(value: object) -> str:
    if value is None:
        return ""
    shown = value if isinstance(value, str) else json.dumps(value)
    return shown if len(shown) <= _MOST_OF_CELL else f"{shown[:_MOST_OF_CELL]} […]"


def _matrix(held: str) -> Mapping[str, Any]:
    matrix = json.loads(held)
    labels = list(map(_cell, matrix["labels"]))
    if len(labels) < len(matrix["counts"]) or not all(isfinite(one) for row in matrix["counts"] for one in row):
        raise BadValueError("a matrix without numbers, or without labels")
    rows = []
    for row in matrix["counts"][:_MOST_CLASSES]:
        most = sum(row) or 1  # a shade is the share of its row, the true class
        rows.append([(number_text(one), round(_LEVELS * min(1, max(0, one / most)))) for one in row[:_MOST_CLASSES]])
    more = f"the first {_MOST_CLASSES} of {len(labels):,} classes" if len(labels) > _MOST_CLASSES else ""
    return {"matrix": (labels[:_MOST_CLASSES], rows), "more": more}


def _text(held: str) -> Mapping[str, Any]:
    more = f"the first {_MOST_CHARACTERS:,} of {len(held):,} characters" if len(held) > _MOST_CHARACTERS else ""
    return {"text": held[:_MOST_CHARACTERS].splitlines(), "more": more}


_DRAWN: Final = {"image": _image, "table": _table, "confusion_matrix": _matrix}
