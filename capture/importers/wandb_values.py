"""wandb values: numbers, and histograms, images and files, which wandb logs as objects with ``_type``.

Source: wandb/sdk/data_types. New releases flatten an object to several keys (``pic._type``, ``pic.path``);
`split_objects` restores it.
"""

import json
import math
import mimetypes
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ranklake.capture.assets.media_value import IMAGE, MOST_HELD_BYTES
from ranklake.capture.common.values import redacted_name
from ranklake.capture.histogram import Histogram, histogram_of_bins
from ranklake.capture.importers.formats import LONGEST_NAME

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun

_NUMBER_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TYPE: Final = "_type"
_HEX: Final = frozenset("0123456789abcdef")
_SHA256: Final = 64

Fetch = Callable[[str], bytes | None]
"""Returns the bytes of a run's file by its path; None if it does not exist."""


def number(raw_value: Any) -> float | None:  # noqa: ANN401 - JSON
    """Return a number, or the NaN or infinity of a word such as ``NaN``; None for other values, and for bools."""
    value = _NUMBER_WORDS.get(raw_value, raw_value) if isinstance(raw_value, str) else raw_value
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def file_below(fs: Any, folder: str, path: str) -> bytes | None:  # noqa: ANN401 - a file system of fsspec
    """Return the bytes of a file below a folder; None if it does not exist, or exceeds `MOST_HELD_BYTES`."""
    full_path = f"{folder}/{path}"
    if not fs.isfile(full_path) or int(fs.info(full_path)["size"] or 0) > MOST_HELD_BYTES:
        return None
    return bytes(fs.cat_file(full_path))


def split_objects(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Split values into plain values and objects, each by name.

    >>> split_objects({"loss": 1, "pic._type": "image-file", "pic.size": 69})
    ({'loss': 1}, {'pic': {'_type': 'image-file', 'size': 69}})
    """
    objects = {name: dict(value) for name, value in values.items() if isinstance(value, Mapping) and _TYPE in value}
    nested = {name.removesuffix(f".{_TYPE}") for name in values if name.endswith(f".{_TYPE}")}
    plain: dict[str, Any] = {}
    for name, value in values.items():
        parent = next((prefix for prefix in nested if name.startswith(f"{prefix}.")), None)
        if parent is not None:
            objects.setdefault(parent, {})[name.removeprefix(f"{parent}.")] = value
        elif name not in objects:
            plain[name] = value
    return plain, objects


def add_object(
    recording: "ImportedRun", name: str, value: dict[str, Any], at_ns: int, step: int | None, fetch: Fetch
) -> bool:
    """Add a histogram to `distributions`, an image to `media`, another file to `artifacts`; False for other objects."""
    name = redacted_name(name, LONGEST_NAME)
    if value.get(_TYPE) == "histogram":
        histogram = _histogram(value)
        if histogram is not None:
            recording.distribution(name, histogram, at_ns, step=step, sum=None)
        return histogram is not None
    paths = value.get("filenames") if isinstance(value.get("filenames"), list) else [value.get("path")]
    safe_paths = [path for path in paths or () if isinstance(path, str) and ".." not in path.split("/")]
    for index, path in enumerate(safe_paths):
        raw = fetch(path) if str(value.get(_TYPE)).startswith("image") else None
        label = name if not index else f"{name}/{index}"
        if raw is None or not recording.media(label, raw, IMAGE, at_ns, step=step):
            _add_reference(recording, label, path, value, at_ns, step)
    return bool(safe_paths)


def _add_reference(
    recording: "ImportedRun", name: str, path: str, value: dict[str, Any], at_ns: int, step: int | None
) -> None:
    size, sha256 = value.get("size"), str(value.get("sha256"))
    columns = {"bytes": size} if isinstance(size, int) and size >= 0 else {}
    is_digest = len(sha256) == _SHA256 and _HEX.issuperset(sha256)
    about = json.dumps({"wandb_type": redacted_name(value.get(_TYPE), LONGEST_NAME), "path": redacted_name(path, 1024)})
    recording.row(
        "artifacts", at_ns, name=name, kind="other", action="created", step=step, file_count=1, attributes=about,
        sha256=sha256 if is_digest else None, media_type=mimetypes.guess_type(path)[0], **columns,
    )  # fmt: skip


def _histogram(value: dict[str, Any]) -> Histogram | None:
    """Convert a histogram with packed or listed bounds; None if it is empty or cannot be read."""
    packed = value.get("packedBins")
    try:
        counts = np.atleast_1d(np.array(value.get("values"), np.float64))
        if isinstance(packed, dict):
            edges = float(packed["min"]) + float(packed["size"]) * np.arange(len(counts) + 1)
        else:
            edges = np.atleast_1d(np.array(value.get("bins"), np.float64))
    except (TypeError, ValueError, KeyError, OverflowError):
        return None
    return histogram_of_bins(edges[:-1], edges[1:], counts) if counts.ndim == edges.ndim == 1 else None
