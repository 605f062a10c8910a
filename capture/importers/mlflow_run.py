"""A run of MLflow as its stores hold it, whichever of them it comes from: files or SQLite."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

STATUSES: Final = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
"""As files name them (mlflow/protos/service.proto, RunStatus); tables hold the words."""
DELETED: Final = "deleted in MLflow"


class Point(NamedTuple):
    """A metric's value; its time in ms since 1970."""

    name: str
    value: float
    at_ms: int
    step: int


class Flaw(NamedTuple):
    """What cannot be read: why, the text, the file within the store and its line."""

    reason: str
    text: str
    file: str
    line: int | None = None


class ArtifactFile(NamedTuple):
    """A file of a run by reference: its path below the run's artifacts, its size, and when it was written."""

    path: str
    uri: str
    size_bytes: int | None
    at_ms: int | None


class ModelVersion(NamedTuple):
    """A registered model's version that a run made; aliases and stage are its tags."""

    model: str
    version: str
    uri: str
    at_ms: int | None
    tags: tuple[str, ...]


@dataclass(kw_only=True)
class MlflowRun:
    """What a store says of a run.

    Attributes
    ----------
    points
        Gives the history of its metrics, in the store's order; a flaw for what is none. Called once for the digest and
        once for the rows.
    artifacts
        Files that lie where `artifact_uri` says, if they can be seen from here.
    others
        Counts what is not imported, by kind.
    parent
        Title of the run that it was started in.
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
        """Its name and the beginning of its id: names need not differ."""
        return f"{self.name or 'run'}-{self.id[:8]}"

    def digest(self) -> str:
        """Return the SHA-256 of all that is imported of it, in hex. Raises what reading raises."""
        sha = hashlib.sha256()
        for part in self._content():
            sha.update(json.dumps(part, sort_keys=True, default=str).encode() + b"\n")
        return sha.hexdigest()

    def _content(self) -> Iterator[Any]:
        # neither where files lie nor when they were copied: a store that moved is the same
        yield [self.id, self.name, self.experiment, self.status, self.start_ms, self.end_ms, self.user]
        yield [self.artifact_uri, self.params, self.tags, sorted(self.others.items()), sorted(map(repr, self.flaws))]
        yield [sorted((file.path, file.size_bytes or 0) for file in self.artifacts), sorted(map(repr, self.models))]
        yield from self.points()
