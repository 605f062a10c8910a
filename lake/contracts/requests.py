"""Requests for metrics, added to an overlay's ``metrics.yaml`` with the status ``requested``.

A user maintains this file, so the existing text, with its comments, is kept. The new entry follows the last one. The
new text is written to a temporary file, read back and compared with the expected content, and then replaces the file.
"""

import contextlib
import difflib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.build import Document
from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.load import load_metrics
from ranklake.lake.contracts.model import Metric, is_known_unit
from ranklake.lake.contracts.schema import validate

FILE: Final = "metrics.yaml"
_NEAR: Final = 0.85


class RequestRefusedError(RanklakeError):
    """A request was refused. The overlay is unchanged."""


@dataclass(frozen=True, slots=True)
class FileResult:
    """Result of `file_request`.

    Attributes
    ----------
    path
        The file that contains the request.
    is_new
        False if the file already contained the same request.
    near
        An existing metric with a similar name, which the user may have meant; None if there is none.
    """

    path: Path
    is_new: bool
    near: str | None


def file_request(overlay: Path, wanted: Metric) -> FileResult:
    """Add a request for a metric to an overlay. Creates the overlay's folder if it does not exist.

    The overlay is unchanged after an error.

    Raises
    ------
    RequestRefusedError
        The metric exists, under this name or an alias; a different request has this name; or name or unit is invalid.
    ContractError
        The overlay is invalid, or an entry cannot be added without rewriting existing text.
    OSError
        The file cannot be written.
    """
    overlay.mkdir(parents=True, exist_ok=True)
    with _folder_lock(overlay):
        known = load_metrics(overlay)
        if _is_filed(known.get(wanted.name), wanted, overlay):
            return FileResult(overlay / FILE, is_new=False, near=None)
        for other in known.values():
            if wanted.name in other.aka:
                raise RequestRefusedError(
                    f"{wanted.name} is {other.name}", hint=f"record that; `ranklake catalog {other.name}` shows it"
                )
        if not is_known_unit(wanted.unit):
            raise RequestRefusedError(
                f"unit {wanted.unit!r} is not SI", where=wanted.name, hint="such as s, By, W, Cel, ratio, 1, {request}"
            )
        if (wanted.kind == "ratio") != (wanted.unit == "ratio"):
            raise RequestRefusedError("a ratio is of the kind ratio", where=wanted.name, hint="name both, or neither")
        near = difflib.get_close_matches(wanted.name, known, n=1, cutoff=_NEAR)
        _add(overlay / FILE, _facts(wanted))
    return FileResult(overlay / FILE, is_new=True, near=near[0] if near else None)


def _is_filed(existing: Metric | None, wanted: Metric, overlay: Path) -> bool:
    """Whether the same request exists. Raises `RequestRefusedError` if the metric or a different request exists."""
    if existing is None:
        return False
    if existing.status != "requested":
        raise RequestRefusedError(
            f"{wanted.name} is a metric already, in {existing.unit!r}, owned by {existing.owner}",
            hint=f"record it; `ranklake catalog {wanted.name}` shows it",
        )
    if _facts(existing) != _facts(wanted):
        raise RequestRefusedError(
            f"{wanted.name} is requested already, in {existing.unit!r} by {existing.owner}, in other words",
            where=str(overlay / FILE),
            hint="edit it there",
        )
    return True


def _facts(wanted: Metric) -> dict[str, Any]:
    names = ("name", "unit", "kind", "owner", "sampling", "status", "doc")
    return {name: getattr(wanted, name) for name in names}


def _add(path: Path, facts: dict[str, Any]) -> None:
    """Add an entry after the last one. Raises `ContractError`, `RequestRefusedError`, `OSError`."""
    has_file = path.exists()
    before = path.read_text(encoding="utf-8") if has_file else "version: 1\nmetrics:\n"
    content: dict[str, Any] = Document(path).content if has_file else {"version": 1}
    wanted = {**content, "metrics": [*(content.get("metrics") or []), facts]}
    fd, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(_with_entry(before, facts, path))
            file.flush()
            os.fsync(file.fileno())
        document = Document(temporary)
        if document.content != wanted:
            raise ContractError("an entry cannot be added behind the last", where=str(path), hint=_BY_HAND)
        try:
            validate(document, "metrics")
        except ContractError as error:
            raise RequestRefusedError(error.what, where=facts["name"], hint=error.hint) from error
        temporary.chmod(path.stat().st_mode & 0o777 if has_file else 0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


_BY_HAND: Final = "make `metrics:` a list with a dash before each entry, or add this one by hand"


def _with_entry(before: str, facts: dict[str, Any], path: Path) -> str:
    """Return the text of a metrics file with an entry added. Raises `ContractError`."""
    try:
        root = yaml.compose(before, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ContractError("is not YAML", where=str(path), hint="fix it first") from error
    nodes = {key.value: (key, value) for key, value in root.value} if isinstance(root, yaml.MappingNode) else {}
    if "metrics" not in nodes:
        raise ContractError("has no list `metrics`", where=str(path), hint="add a line `metrics:`")
    key, value = nodes["metrics"]
    lines = before.splitlines()
    if isinstance(value, yaml.SequenceNode) and value.value and not value.flow_style:
        column = value.start_mark.column
        at = value.value[-1].end_mark.line + (value.value[-1].end_mark.column > 0)
        while at > 0 and (not lines[at - 1].strip() or lines[at - 1].lstrip().startswith("#")):
            at -= 1
    elif isinstance(value, yaml.SequenceNode) and value.value:
        raise ContractError("an entry cannot be added to a list in brackets", where=str(path), hint=_BY_HAND)
    else:  # an empty list
        column, at = key.start_mark.column + 2, key.start_mark.line + 1
        lines[at - 1] = lines[at - 1][: key.end_mark.column] + ":"
    indent = " " * column
    entry = [
        f"{indent}{'- ' if number == 0 else '  '}{name}: {_scalar(fact)}"
        for number, (name, fact) in enumerate(facts.items())
    ]
    return "\n".join([*lines[:at], *entry, *lines[at:]]) + "\n"


def _scalar(fact: str) -> str:
    """Return a YAML scalar for a text. JSON strings are valid YAML."""
    return json.dumps(fact, ensure_ascii=False)


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes that add requests."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
