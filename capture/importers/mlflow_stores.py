"""MLflow stores: the file store and the SQL store, from which the runs of MLflow are read.

    mlruns/<experiment>/<run>/     meta.yaml, params, tags and metrics, with a file for each name
    mlflow.db                      SQLite tables of runs, parameters, tags and metrics

Sources: mlflow/store/tracking/file_store.py, mlflow/store/tracking/dbmodels/models.py and
mlflow/store/model_registry/dbmodels/models.py. A line of a metric's file is ``<ms> <value> <step>``. MLflow 3 appends a
data set's name and digest; old releases have no step. Deleted experiments are in ``.trash``, registered models in
``models``. Old databases lack some tables and columns; these are read only if they exist.
"""

import math
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import fsspec

from ranklake.capture.importers.folders import is_folder, walk
from ranklake.capture.importers.mlflow_run import STATUSES, ArtifactFile, Flaw, MlflowRun, ModelVersion, Point
from ranklake.capture.importers.source import SourceError
from ranklake.capture.importers.sqlite_file import SqliteFile
from ranklake.file_formats import MAX_BYTES, FormatError, read_yaml

_META: Final = "meta.yaml"
_KEYS: Final = ("experiment_id", "run_id", "run_uuid")
_TRASH, _MODELS = ".trash", "models"
_MAX_FILES: Final = 10_000
_LINE_BYTES: Final = 4_096
_PARTS: Final = (2, 3, 5)
"""Numbers of words in a metric's line: without a step, with a step, with a data set."""
_REQUIRED_TABLES: Final = frozenset({"experiments", "runs", "params", "tags", "metrics"})
_ARTIFACT_ROOTS: Final = ("mlruns", "mlartifacts")
"""Folders of artifacts next to the database: by default, and with a tracking server."""
_INFINITE: Final = 1.7976931348623157e308
"""Value that MLflow stores for infinity."""


@dataclass(frozen=True, slots=True)
class FileStore:
    """A file store. `root` is its folder, or that of one experiment or run."""

    fs: Any
    root: str

    def runs(self) -> Iterator[MlflowRun | SourceError]:
        """Yield the runs in the order of their folders, and an error in place of each unreadable one."""
        meta = self._meta(self.root) if self.fs.exists(f"{self.root}/{_META}") else {}
        if "artifact_uri" in meta:
            yield self._run(self.root, meta, self._experiment(posixpath.dirname(self.root)), {})
            return
        experiments = [self.root] if meta else [*self._folders(self.root), *self._folders(f"{self.root}/{_TRASH}")]
        store = posixpath.dirname(self.root) if meta else self.root
        models = self._models(f"{store}/{_MODELS}")
        for folder in experiments:
            if posixpath.basename(folder) not in {_TRASH, _MODELS}:
                yield from self._runs_of(folder, models)

    def is_store(self) -> bool:
        """Whether the folder, or a folder in it, has a ``meta.yaml`` of MLflow."""
        folders = (self.root, *self._folders(self.root), *self._folders(f"{self.root}/{_TRASH}"))
        return any(self.fs.exists(f"{folder}/{_META}") and self._has_mlflow_meta(folder) for folder in folders)

    def _has_mlflow_meta(self, folder: str) -> bool:
        try:
            return not self._meta(folder).keys().isdisjoint(_KEYS)
        except SourceError:  # reported when its runs are read
            return True

    def _runs_of(self, folder: str, models: dict[str, list[ModelVersion]]) -> Iterator[MlflowRun | SourceError]:
        try:
            experiment = self._experiment(folder)
        except SourceError as error:
            yield error
            return
        for run_folder in self._folders(folder):
            if not self.fs.exists(f"{run_folder}/{_META}"):
                continue
            try:
                meta = self._meta(run_folder)
                if "run_id" in meta or "run_uuid" in meta:
                    yield self._run(run_folder, meta, experiment, models)
            except SourceError as error:
                yield error

    def _experiment(self, folder: str) -> dict[str, Any]:
        return self._meta(folder) if self.fs.exists(f"{folder}/{_META}") else {}

    def _meta(self, folder: str) -> dict[str, Any]:
        """Return a folder's ``meta.yaml``. Raises `SourceError`."""
        where = f"{'/'.join(folder.split('/')[-2:])}/{_META}"
        try:
            raw = self.fs.cat_file(f"{folder}/{_META}", end=MAX_BYTES + 1)
            meta = read_yaml(raw.decode()) if len(raw) <= MAX_BYTES else None
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"cannot be read ({type(error).__name__})", where=where, hint="restore it") from error
        except FormatError as error:
            raise SourceError(error.what, where=f"{where}:{error.line}", hint=error.hint) from error
        if not isinstance(meta, dict):
            raise SourceError("not a file of MLflow", where=where, hint="restore it")
        return {str(name): value for name, value in meta.items()}

    def _run(
        self, folder: str, meta: dict[str, Any], experiment: dict[str, Any], models: dict[str, list[ModelVersion]]
    ) -> MlflowRun:
        name = posixpath.basename(folder)
        flaws: list[Flaw] = []
        tags = self._texts(f"{folder}/tags", flaws)
        status = meta.get("status")
        run = MlflowRun(
            id=name,
            name=str(meta.get("run_name") or tags.get("mlflow.runName") or meta.get("name") or ""),
            experiment=str(experiment.get("name") or ""),
            status=STATUSES.get(status, "") if isinstance(status, int) else str(status or ""),
            is_deleted="deleted" in {meta.get("lifecycle_stage"), experiment.get("lifecycle_stage")},
            start_ms=plausible_int(meta.get("start_time")),
            end_ms=plausible_int(meta.get("end_time")),
            user=str(meta.get("user_id") or tags.get("mlflow.user") or ""),
            artifact_uri=str(meta.get("artifact_uri") or ""),
            points=lambda: self._points(f"{folder}/metrics", name),
            params=self._texts(f"{folder}/params", flaws),
            tags=tags,
            flaws=flaws,
            artifacts=artifact_files(self.fs, [f"{folder}/artifacts"]),
            models=models.get(name, []),
        )
        for kind in ("inputs", "outputs"):
            if count := len(self._folders(f"{folder}/{kind}")):
                run.others[f"{kind} (data sets and logged models)"] = count
        return run

    def _texts(self, folder: str, flaws: list[Flaw]) -> dict[str, str]:
        """Return parameters or tags by name. Each is a file whose path is the name."""
        texts = {}
        for path, _ in walk(self.fs, folder):
            name = path.removeprefix(f"{folder}/")
            try:
                raw = self.fs.cat_file(path, end=MAX_BYTES + 1)
                if len(raw) > MAX_BYTES:
                    flaws.append(Flaw(f"more than {MAX_BYTES >> 20} MiB", "", name))
                else:
                    texts[name] = raw.decode()
            except UnicodeDecodeError:
                flaws.append(Flaw("not UTF-8", "", name))
            except OSError as error:
                flaws.append(Flaw(f"cannot be read ({type(error).__name__})", "", name))
        return texts

    def _points(self, folder: str, run: str) -> Iterator[Point | Flaw]:
        for path, _ in walk(self.fs, folder):
            name = path.removeprefix(f"{folder}/")
            where = f"{run}/metrics/{name}"
            try:
                with self.fs.open(path, "rb") as file:
                    for number, raw in enumerate(iter(lambda: file.readline(_LINE_BYTES), b""), 1):
                        if raw.strip():
                            yield _parse_point(name, raw, where, number)
            except OSError as error:
                yield Flaw(f"cannot be read ({type(error).__name__})", "", where)

    def _models(self, folder: str) -> dict[str, list[ModelVersion]]:
        """Return model versions by the run that made them, without unreadable ones."""
        by_run: dict[str, list[ModelVersion]] = {}
        for model in self._folders(folder):
            aliases = self._texts(f"{model}/aliases", [])
            for version in self._folders(model):
                try:
                    meta = self._meta(version) if posixpath.basename(version).startswith("version-") else {}
                except SourceError:
                    continue
                if not meta.get("run_id"):
                    continue
                number, stage = str(meta.get("version")), meta.get("current_stage")
                version_aliases = [alias for alias, text in sorted(aliases.items()) if text.strip() == number]
                tags = (*version_aliases, *([str(stage)] if stage and stage != "None" else []))
                model_version = ModelVersion(
                    str(meta.get("name") or posixpath.basename(model)), number, str(meta.get("source") or ""),
                    plausible_int(meta.get("creation_timestamp")), tags,
                )  # fmt: skip
                by_run.setdefault(str(meta["run_id"]), []).append(model_version)
        return by_run

    def _folders(self, folder: str) -> list[str]:
        try:
            entries = self.fs.ls(folder, detail=True)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return []
        return sorted(entry["name"].rstrip("/") for entry in entries if is_folder(self.fs, entry))


@dataclass(frozen=True, slots=True)
class TableStore:
    """A SQL store in a SQLite file, which is opened read-only."""

    path: Path
    _columns: dict[str, set[str]] = field(default_factory=dict)

    @property
    def file(self) -> SqliteFile:
        """The SQLite file."""
        return SqliteFile(self.path)

    def runs(self) -> Iterator[MlflowRun | SourceError]:
        """Yield the runs in the order of their starts. Raises `SourceError` if the file is no store of MLflow."""
        self._columns.update(self.file.columns())
        if missing := _REQUIRED_TABLES - self._columns.keys():
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
            start_ms=plausible_int(row.get("start_time")),
            end_ms=plausible_int(row.get("end_time")),
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
        """Return possible folders of a run's artifacts: its URI's path, and, in case the store moved, its new path.

        Folders outside the database's folder are left out.
        """
        parts = urlsplit(uri)
        stored_path = Path(unquote(parts.path))
        store = self.path.resolve().parent
        paths = [store.joinpath(root, *stored_path.parts[-3:]) for root in _ARTIFACT_ROOTS]
        if parts.scheme in {"", "file"} and not parts.netloc:
            paths.insert(0, stored_path)
        return [str(path) for path in paths if uri and path.resolve().is_relative_to(store) and ".." not in path.parts]

    def _points_of(self, run_id: str) -> Callable[[], Iterator[Point | Flaw]]:
        """Return a function that yields the values of a run's metrics, ordered by name and step."""

        def points() -> Iterator[Point | Flaw]:
            query = (
                "SELECT key, value, timestamp, step, is_nan, rowid AS number FROM metrics WHERE run_uuid = ?"
                " ORDER BY key, step, timestamp, rowid"
            )
            try:
                for row in self.file.each_row(query, run_id):
                    key, value, at, step = row["key"], row["value"], row["timestamp"], row["step"]
                    point = _typed_point(key, math.nan if row["is_nan"] else value, at, step)
                    if point is None:
                        text = repr((key, value, at, step))
                        yield Flaw("the row needs time, value and step", text, "metrics", row["number"])
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
            created_ms = plausible_int(row.get("creation_time"))
            model_version = ModelVersion(name, version, str(row.get("source") or ""), created_ms, tags)
            by_run.setdefault(str(row["run_id"]), []).append(model_version)
        return by_run

    def _others(self) -> dict[str, dict[str, int]]:
        """Count the items of each run that are not imported, by kind."""
        others: dict[str, dict[str, int]] = {}
        if "inputs" in self._columns:
            query = "SELECT destination_id AS run, count(*) AS n FROM inputs WHERE destination_type = 'RUN' GROUP BY 1"
            for row in self.file.rows(query):
                others[str(row["run"])] = {"inputs (data sets and logged models)": int(row["n"])}
        return others


def _parse_point(name: str, raw: bytes, where: str, number: int) -> Point | Flaw:
    text = raw.decode(errors="replace").strip()
    parts = text.split(" ")
    if len(parts) not in _PARTS:
        return Flaw("the line needs time, value and step", text, where, number)
    try:
        return Point(name, float(parts[1]), int(parts[0]), int(parts[2]) if len(parts) > _PARTS[0] else 0)
    except (ValueError, OverflowError):
        return Flaw("the line needs time, value and step", text, where, number)


def artifact_files(fs: Any, folders: list[str]) -> list[ArtifactFile]:  # noqa: ANN401 - a file system of fsspec
    """Return the files in the first existing folder, at most `_MAX_FILES`.

    Callers pass only folders within the store, because a store may name any folder of the machine.
    """
    folder = next((path for path in folders if fs.isdir(path)), None)
    if folder is None:
        return []
    files = []
    for path, entry in walk(fs, folder.rstrip("/")):
        mtime = entry.get("mtime")
        at_ms = round(mtime * 1000) if isinstance(mtime, int | float) else None
        name = path.removeprefix(folder.rstrip("/") + "/")
        files.append(ArtifactFile(name, str(fs.unstrip_protocol(path)), plausible_int(entry.get("size")), at_ms))
        if len(files) >= _MAX_FILES:
            break
    return files


def plausible_int(value: Any) -> int | None:  # noqa: ANN401 - of YAML or SQLite
    """Return an integer below 2**53; None for other values."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53 else None


def _typed_point(name: Any, value: Any, at_ms: Any, step: Any) -> Point | None:  # noqa: ANN401 - SQLite holds any type
    if not isinstance(name, str) or not isinstance(value, int | float):
        return None
    if not isinstance(at_ms, int) or not isinstance(step, int):
        return None
    number = float(value)
    return Point(name, math.copysign(math.inf, number) if abs(number) >= _INFINITE else number, at_ms, step)
