"""MLflow run: the content of one run, from the file store or the SQL store."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

STATUSES: Final = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
"""Statuses by number in the file store (mlflow/protos/service.proto, RunStatus). The SQL store has their names."""
DELETED: Final = "deleted in MLflow"


class Point(NamedTuple):
    """A metric's value. `at_ms` is its time, ms since 1970."""

    name: str
    value: float
    at_ms: int
    step: int


class Flaw(NamedTuple):
    """Content that cannot be read: the reason, its text, the file within the store, and the line."""

    reason: str
    text: str
    file: str
    line: int | None = None


class ArtifactFile(NamedTuple):
    """A file of a run: path below the run's artifacts, URI, size, and last change in ms since 1970."""

    path: str
    uri: str
    size_bytes: int | None
    at_ms: int | None


class ModelVersion(NamedTuple):
    """A version of a registered model, made by a run. `tags` are its aliases and stage."""

    model: str
    version: str
    uri: str
    at_ms: int | None
    tags: tuple[str, ...]


@dataclass(kw_only=True)
class MlflowRun:
    """The content of a run in a store.

    Attributes
    ----------
    points
        Yields the values of all metrics in the store's order, and a flaw for each that cannot be read. Called once for
        the digest and once for the rows.
    artifacts
        Files below `artifact_uri`, if they are in the store.
    others
        Number of items that are not imported, by kind.
    parent
        Title of the parent run; empty if there is none.
    """

    id: str
    name: str
    experiment: str
    status: str
    is_deleted: bool
    start_ms: int | None
    end_ms: int | None
    user: str
    artifact_uri: str
    points: Callable[[], Iterator[Point | Flaw]]
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    flaws: list[Flaw] = field(default_factory=list)
    artifacts: list[ArtifactFile] = field(default_factory=list)
    models: list[ModelVersion] = field(default_factory=list)
    others: dict[str, int] = field(default_factory=dict)
    parent: str = ""

    @property
    def title(self) -> str:
        """Name and first digits of the id, because several runs may have the same name."""
        return f"{self.name or 'run'}-{self.id[:8]}"

    def digest(self) -> str:
        """Return the SHA-256 of everything imported, in hex. Raises any error of reading the store."""
        sha = hashlib.sha256()
        for part in self._content():
            sha.update(json.dumps(part, sort_keys=True, default=str).encode() + b"\n")
        return sha.hexdigest()

    def _content(self) -> Iterator[Any]:
        # without paths and times of files, so that a moved or copied store has the same digest
        yield [self.id, self.name, self.experiment, self.status, self.start_ms, self.end_ms, self.user]
        yield [self.artifact_uri, self.params, self.tags, sorted(self.others.items()), sorted(map(repr, self.flaws))]
        yield [sorted((file.path, file.size_bytes or 0) for file in self.artifacts), sorted(map(repr, self.models))]
        yield from self.points()
