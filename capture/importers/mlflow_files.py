"""MLflow's file store: ``mlruns/<experiment>/<run>/`` with ``meta.yaml``, ``params``, ``tags`` and ``metrics``.

Source: mlflow/store/tracking/file_store.py. A line of a metric's file is ``<ms> <value> <step>``, since MLflow 3 with a
data set's name and digest behind them; files of old releases have no step. Experiments that were deleted lie in
``.trash``, registered models in ``models``.
"""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ranklake.capture.importers.folders import is_folder, walk
from ranklake.capture.importers.mlflow_run import STATUSES, ArtifactFile, Flaw, MlflowRun, ModelVersion, Point
from ranklake.capture.importers.source import SourceError
from ranklake.file_formats import MAX_BYTES, FormatError, read_yaml

META: Final = "meta.yaml"
_KEYS: Final = ("experiment_id", "run_id", "run_uuid")
_TRASH, _MODELS = ".trash", "models"
_MOST_FILES: Final = 10_000
_LINE_BYTES: Final = 4_096
_PARTS: Final = (2, 3, 5)
"""Words of a metric's line: without a step, with one, with a data set."""


@dataclass(frozen=True, slots=True)
class FileStore:
    """A folder of a file store: all of it, an experiment's or a run's; `fs` is a file system of fsspec."""

    fs: Any
    root: str

    def runs(self) -> Iterator[MlflowRun | SourceError]:
        """Yield the runs, in the order of their folders; for a folder that cannot be read, why."""
        meta = self._meta(self.root) if self.fs.exists(f"{self.root}/{META}") else {}
        if "artifact_uri" in meta:
            yield self._run(self.root, meta, self._experiment(posixpath.dirname(self.root)), {})
            return
        experiments = [self.root] if meta else [*self._folders(self.root), *self._folders(f"{self.root}/{_TRASH}")]
        above = posixpath.dirname(self.root) if meta else self.root
        models = self._models(f"{above}/{_MODELS}")
        for folder in experiments:
            if posixpath.basename(folder) not in {_TRASH, _MODELS}:
                yield from self._runs_of(folder, models)

    def is_store(self) -> bool:
        """Whether the folder, or one in it, has what a store has."""
        inside = (self.root, *self._folders(self.root), *self._folders(f"{self.root}/{_TRASH}"))
        return any(self.fs.exists(f"{folder}/{META}") and self._is_of_mlflow(folder) for folder in inside)

    def _is_of_mlflow(self, folder: str) -> bool:
        try:
            return not self._meta(folder).keys().isdisjoint(_KEYS)
        except SourceError:  # a damaged one is named when its runs are read
            return True

    def _runs_of(self, folder: str, models: dict[str, list[ModelVersion]]) -> Iterator[MlflowRun | SourceError]:
        try:
            experiment = self._experiment(folder)
        except SourceError as error:
            yield error
            return
        for below in self._folders(folder):
            if not self.fs.exists(f"{below}/{META}"):
                continue
            try:
                meta = self._meta(below)
                if "run_id" in meta or "run_uuid" in meta:
                    yield self._run(below, meta, experiment, models)
            except SourceError as error:
                yield error

    def _experiment(self, folder: str) -> dict[str, Any]:
        return self._meta(folder) if self.fs.exists(f"{folder}/{META}") else {}

    def _meta(self, folder: str) -> dict[str, Any]:
        """Return a folder's ``meta.yaml``. Raises `SourceError`."""
        where = f"{'/'.join(folder.split('/')[-2:])}/{META}"
        try:
            raw = self.fs.cat_file(f"{folder}/{META}", end=MAX_BYTES + 1)
            meta = read_yaml(raw.decode()) if len(raw) <= MAX_BYTES else None
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"cannot be read ({type(error).__name__})", where=where, hint="restore it") from error
        except FormatError as error:
            raise SourceError(error.what, where=f"{where}:{error.line}", hint=error.hint) from error
        if not isinstance(meta, dict):
            raise SourceError("not what MLflow writes", where=where, hint="restore it")
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
            start_ms=whole(meta.get("start_time")),
            end_ms=whole(meta.get("end_time")),
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
        """Return parameters or tags: a file each, whose path is the name."""
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
                            yield _point(name, raw, where, number)
            except OSError as error:
                yield Flaw(f"cannot be read ({type(error).__name__})", "", where)

    def _models(self, folder: str) -> dict[str, list[ModelVersion]]:
        """Return registered versions by the run that made them; what cannot be read is left out."""
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
                named = [alias for alias, of in sorted(aliases.items()) if of.strip() == number]
                tags = (*named, *([str(stage)] if stage and stage != "None" else []))
                made = ModelVersion(
                    str(meta.get("name") or posixpath.basename(model)), number, str(meta.get("source") or ""),
                    whole(meta.get("creation_timestamp")), tags,
                )  # fmt: skip
                by_run.setdefault(str(meta["run_id"]), []).append(made)
        return by_run

    def _folders(self, folder: str) -> list[str]:
        try:
            entries = self.fs.ls(folder, detail=True)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return []
        return sorted(entry["name"].rstrip("/") for entry in entries if is_folder(self.fs, entry))


def _point(name: str, raw: bytes, where: str, number: int) -> Point | Flaw:
    text = raw.decode(errors="replace").strip()
    parts = text.split(" ")
    if len(parts) not in _PARTS:
        return Flaw("a metric's line without time, value and step", text, where, number)
    try:
        return Point(name, float(parts[1]), int(parts[0]), int(parts[2]) if len(parts) > _PARTS[0] else 0)
    except (ValueError, OverflowError):
        return Flaw("a metric's line without time, value and step", text, where, number)


def artifact_files(fs: Any, folders: list[str]) -> list[ArtifactFile]:  # noqa: ANN401 - a file system of fsspec
    """Return the files of a run's artifacts: of the first of the folders that is there.

    All lie in the store. Where its URI leads elsewhere, nothing is looked at: a store may name any folder.
    """
    folder = next((path for path in folders if fs.isdir(path)), None)
    if folder is None:
        return []
    files = []
    for path, entry in walk(fs, folder.rstrip("/")):
        mtime = entry.get("mtime")
        at_ms = round(mtime * 1000) if isinstance(mtime, int | float) else None
        name = path.removeprefix(folder.rstrip("/") + "/")
        files.append(ArtifactFile(name, str(fs.unstrip_protocol(path)), whole(entry.get("size")), at_ms))
        if len(files) >= _MOST_FILES:
            break
    return files


def whole(value: Any) -> int | None:  # noqa: ANN401 - of YAML or SQLite
    """Return a whole number of plausible size; None for all else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53 else None
