"""MLflow's SQL store in SQLite: tables of runs, parameters, tags and metrics.

Source: mlflow/store/tracking/dbmodels/models.py and mlflow/store/model_registry/dbmodels/models.py. Releases add
tables and columns; what an old store lacks is asked for only where it is there.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import fsspec

from ranklake.capture.importers.mlflow_files import artifact_files, whole
from ranklake.capture.importers.mlflow_run import Flaw, MlflowRun, ModelVersion, Point
from ranklake.capture.importers.source import SourceError
from ranklake.capture.importers.sqlite_file import SqliteFile

_NEEDED: Final = frozenset({"experiments", "runs", "params", "tags", "metrics"})
_ARTIFACT_ROOTS: Final = ("mlruns", "mlartifacts")
"""Where MLflow keeps artifacts beside the database, by default and behind a server."""
_INFINITE: Final = 1.7976931348623157e308
"""What MLflow stores for an infinite value."""


@dataclass(frozen=True, slots=True)
class TableStore:
    """A SQLite file; it is opened for reading alone."""

    path: Path
    _columns: dict[str, set[str]] = field(default_factory=dict)

    @property
    def file(self) -> SqliteFile:
        """The file that it is."""
        return SqliteFile(self.path)

    def runs(self) -> Iterator[MlflowRun | SourceError]:
        """Yield the runs in the order of their starts. Raises `SourceError` where the file is no store of MLflow."""
        self._columns.update(self.file.columns())
        if missing := _NEEDED - self._columns.keys():
            hint = "name the file of mlflow's backend store, mlflow.db by default"
            flaw = f"a SQLite file without tables {', '.join(sorted(missing))}"
            raise SourceError(flaw, where=str(self.path), hint=hint)
        rows = self.file.rows(
            "SELECT r.*, e.name AS experiment, e.lifecycle_stage AS experiment_stage FROM runs r"
            " LEFT JOIN experiments e USING (experiment_id) ORDER BY r.start_time, r.run_uuid"
        )
        params, tags = self._texts("params"), self._texts("tags")
        models, others = self._models(), self._others()
        for row in rows:
            run_id = str(row["run_uuid"])
            yield self._run(run_id, row, params.get(run_id, {}), tags.get(run_id, {}), models, others)

    def _run(
        self, run_id: str, row: dict[str, Any], params: dict[str, str], tags: dict[str, str],
        models: dict[str, list[ModelVersion]], others: dict[str, dict[str, int]],
    ) -> MlflowRun:  # fmt: skip
        uri = str(row.get("artifact_uri") or "")
        return MlflowRun(
            id=run_id,
            name=str(row.get("name") or tags.get("mlflow.runName") or ""),
            experiment=str(row.get("experiment") or ""),
            status=str(row.get("status") or ""),
            is_deleted="deleted" in {row.get("lifecycle_stage"), row.get("experiment_stage")},
            start_ms=whole(row.get("start_time")),
            end_ms=whole(row.get("end_time")),
            user=str(row.get("user_id") or tags.get("mlflow.user") or ""),
            artifact_uri=uri,
            points=self._points_of(run_id),
            params=params,
            tags=tags,
            artifacts=artifact_files(fsspec.filesystem("file"), self._artifact_folders(uri)),
            models=models.get(run_id, []),
            others=others.get(run_id, {}),
        )

    def _artifact_folders(self, uri: str) -> list[str]:
        """Return where a run's artifacts may lie: below the file's folder, as the store has it, or since it moved."""
        parts = urlsplit(uri)
        place = Path(unquote(parts.path))
        beside = self.path.resolve().parent
        ways = [beside.joinpath(root, *place.parts[-3:]) for root in _ARTIFACT_ROOTS]
        if parts.scheme in {"", "file"} and not parts.netloc:
            ways.insert(0, place)
        return [str(way) for way in ways if uri and way.resolve().is_relative_to(beside) and ".." not in way.parts]

    def _points_of(self, run_id: str) -> Callable[[], Iterator[Point | Flaw]]:
        """Return what yields the values of a run's metrics, by name and step."""

        def points() -> Iterator[Point | Flaw]:
            query = (
                "SELECT key, value, timestamp, step, is_nan, rowid AS number FROM metrics WHERE run_uuid = ?"
                " ORDER BY key, step, timestamp, rowid"
            )
            try:
                for row in self.file.each_row(query, run_id):
                    key, value, at, step = row["key"], row["value"], row["timestamp"], row["step"]
                    point = _point(key, math.nan if row["is_nan"] else value, at, step)
                    if point is None:
                        text = repr((key, value, at, step))
                        yield Flaw("a metric's row without time, value and step", text, "metrics", row["number"])
                    else:
                        yield point
            except SourceError as error:
                yield Flaw(error.what, "", "metrics")

        return points

    def _texts(self, table: str) -> dict[str, dict[str, str]]:
        texts: dict[str, dict[str, str]] = {}
        for row in self.file.rows(f"SELECT run_uuid, key, value FROM {table}"):  # noqa: S608 - a constant
            texts.setdefault(str(row["run_uuid"]), {})[str(row["key"])] = str(row["value"] or "")
        return texts

    def _models(self) -> dict[str, list[ModelVersion]]:
        if "model_versions" not in self._columns:
            return {}
        aliases: dict[tuple[str, str], list[str]] = {}
        if "registered_model_aliases" in self._columns:
            for row in self.file.rows("SELECT * FROM registered_model_aliases ORDER BY alias"):
                aliases.setdefault((str(row["name"]), str(row["version"])), []).append(str(row["alias"]))
        by_run: dict[str, list[ModelVersion]] = {}
        for row in self.file.rows("SELECT * FROM model_versions WHERE run_id IS NOT NULL"):
            name, version, stage = str(row["name"]), str(row["version"]), row.get("current_stage")
            tags = (*aliases.get((name, version), ()), *([str(stage)] if stage and stage != "None" else []))
            made = ModelVersion(name, version, str(row.get("source") or ""), whole(row.get("creation_time")), tags)
            by_run.setdefault(str(row["run_id"]), []).append(made)
        return by_run

    def _others(self) -> dict[str, dict[str, int]]:
        """Count what is not imported of each run."""
        others: dict[str, dict[str, int]] = {}
        if "inputs" in self._columns:
            query = "SELECT destination_id AS run, count(*) AS n FROM inputs WHERE destination_type = 'RUN' GROUP BY 1"
            for row in self.file.rows(query):
                others[str(row["run"])] = {"inputs (data sets and logged models)": int(row["n"])}
        return others


def _point(name: Any, value: Any, at_ms: Any, step: Any) -> Point | None:  # noqa: ANN401 - SQLite holds any type
    if not isinstance(name, str) or not isinstance(value, int | float):
        return None
    if not isinstance(at_ms, int) or not isinstance(step, int):
        return None
    number = float(value)
    return Point(name, math.copysign(math.inf, number) if abs(number) >= _INFINITE else number, at_ms, step)
