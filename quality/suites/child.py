"""The process that runs users' suites in Great Expectations: ``python -m ranklake.quality.suites.child FILE…``.

It runs users' code, so it gets rows and requests only: no lake, no configuration, no credentials. After the import of
Great Expectations, Python code in it may only write in its scratch folder, and may not open connections or start
processes. This guards against mistakes; it is no sandbox against attackers, who cannot write to the folder.

Requests are lines of JSON on standard input, followed by rows as an Arrow stream. Answers are lines of JSON on the
original standard output.
"""

import ctypes
import importlib.util
import json
import math
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Final

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa

from ranklake.quality.engine import error_of, error_text, in_memory, silence, values_of

_PR_SET_PDEATHSIG: Final = 1
_SETS: Final = frozenset({"value_set", "column_set", "type_list"})
_ERROR: Final = 200
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]+")
_FILE_BYTES: Final = 256 * 2**20
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REFUSED: Final = frozenset(
    {
        *(
            "socket.connect",
            "socket.bind",
            "socket.getaddrinfo",
            "socket.gethostbyname",
            "socket.sendto",
            "socket.sendmsg",
        ),
        *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.kill"),
        *("os.killpg", "signal.pthread_kill", "os.chdir", "os.fchdir"),
    }
)
_ON_PATHS: Final = frozenset(
    {
        *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown"),
        *(
            "os.truncate",
            "os.utime",
            "os.setxattr",
            "os.removexattr",
            "shutil.rmtree",
            "shutil.move",
            "shutil.copyfile",
        ),
    }
)


def guard(scratch: Path) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook that allows writes below one folder only, and no connections or processes."""
    inside = str(scratch.resolve())

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        if event in _REFUSED:
            raise PermissionError(f"a suite may not call {event}")
        if event == "open" and isinstance(args[2], int) and args[2] & _WRITES:
            _check_inside(inside, args[0])
        elif event in _ON_PATHS:
            for arg in args:
                _check_inside(inside, arg)

    return refuse


def _check_inside(inside: str, path: object) -> None:
    if not isinstance(path, str | bytes | os.PathLike):
        return  # an open descriptor, or a mode
    place = os.path.realpath(os.fsdecode(path))
    if place not in {os.devnull, inside} and not place.startswith(f"{inside}{os.sep}"):
        raise PermissionError("a suite may write in its scratch folder only")


def main() -> None:
    """Answer requests until the input ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # users' code must not read requests or write answers
        os.dup2(null, standard)
    session = Session(*in_memory())
    sys.addaudithook(guard(Path.cwd()))
    _send(answers, {"files": session.load(sys.argv[1:])})
    for line in requests:
        request = json.loads(line)
        if "rows" in request:
            session.take(requests.read(request["rows"]))
        elif "suites" in request:
            _send(answers, {"suites": session.suites()})
        else:
            _send(answers, session.answer(request))


def _send(answers: IO[bytes], value: object) -> None:
    answers.write(json.dumps(value).encode() + b"\n")
    answers.flush()


class Session:
    """Great Expectations with users' Python files and the current rows."""

    def __init__(self, gx: Any, batches: Any) -> None:  # noqa: ANN401 - their objects
        self._gx, self._batches = gx, batches
        self._configured = gx.expectations.expectation_configuration.ExpectationConfiguration
        self._modules: list[Any] = []
        self._rows = pd.DataFrame()

    def load(self, paths: list[str]) -> dict[str, str]:
        """Run users' Python files, which register their expectations; return the errors of failed files by path."""
        errors = {}
        sys.path += sorted(
            {str(Path(path).parent) for path in paths}
        )  # files may import each other; at the end, to shadow no package
        for index, path in enumerate(paths):
            try:
                self._modules.append(_import_file(path, index))
            except BaseException as error:  # noqa: BLE001 - other files must still run, and a file may not exit
                errors[path] = _error_line(error)  # no rows are loaded yet that it could quote
        return errors

    def suites(self) -> list[Any]:
        """Return the suites in the files' global variables, as JSON values; each object once."""
        suites = {
            id(value): value
            for module in self._modules
            for value in vars(module).values()
            if isinstance(value, self._gx.ExpectationSuite)
        }
        return [_plain(suite) for suite in suites.values()]

    def take(self, stream: bytes) -> None:
        """Set the rows, an Arrow stream, for the following requests."""
        table = pa.ipc.open_stream(stream).read_all()
        columns = {name: values_of(table[name], compared=True) for name in table.column_names}
        self._rows = pd.DataFrame(columns, index=pd.RangeIndex(table.num_rows), copy=False)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Evaluate one expectation; return verdict, counts and, for operational columns, the observed number."""
        classified = True
        try:
            with silence():
                config = self._configured(type=request["type"], kwargs=request["kwargs"])
                expectation = config.to_domain_obj()
                # a user's file may have replaced a class of Great Expectations
                classified = bool(request["classified"]) or not _is_core(type(expectation))
                return self._verdict(expectation, classified=classified)
        except BaseException as error:  # noqa: BLE001 - users' code may raise anything; other requests must still run
            return {"success": None, "error": error_text(type(error).__name__, _message(error), classified=classified)}

    def _verdict(self, expectation: Any, *, classified: bool) -> dict[str, Any]:  # noqa: ANN401 - their object
        # Copy-on-write: an expectation that writes to the shallow copy does not change the rows of the next one.
        batch = self._batches.get_batch(batch_parameters={"dataframe": self._rows.copy(deep=False)})
        result_format = {"result_format": "BASIC", "partial_unexpected_count": 0}
        result = batch.validate(expectation, result_format=result_format)
        error = error_of(result.exception_info or {}, classified=classified)
        if error:
            return {"success": None, "error": error}
        facts = result.result or {}
        checked, failed = _count(facts.get("element_count")), _count(facts.get("unexpected_count"))
        if checked is not None:
            checked -= _count(facts.get("missing_count")) or 0
        observed = None if classified else _number(facts.get("observed_value"))
        return {"success": bool(result.success), "checked": checked, "failed": failed, "observed": observed}


def _import_file(path: str, index: int) -> ModuleType:
    """Run a file as the module of its name, unless it is already imported; under another name if the name is taken."""
    stem = Path(path).stem
    known = sys.modules.get(stem)
    if known is not None and getattr(known, "__file__", None) == path:
        return known
    spec_by_name = importlib.util.find_spec(stem) if stem.isidentifier() and known is None else None
    name = stem if spec_by_name is not None and spec_by_name.origin == path else f"suites_{index}_{stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _plain(suite: Any) -> Any:  # noqa: ANN401 - their object
    """Return a suite as a JSON value, or the text of the error if the conversion fails."""
    try:
        value = json.loads(json.dumps(suite.to_json_dict(), default=str))
        for expectation in value["expectations"]:
            _sort_sets(expectation["kwargs"])
    except Exception as error:  # noqa: BLE001 - other suites must still be read
        return _error_line(error)
    return value


def _error_line(error: BaseException) -> str:
    """Return an error as text without memory addresses, which differ between processes."""
    return _ADDRESS.sub("0x…", f"{type(error).__name__}: {_message(error)}"[:_ERROR])


def _is_core(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "great_expectations"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - users' code, too
        return ""


def _sort_sets(kwargs: dict[str, Any]) -> None:
    """Sort values that may have been a set, whose order differs between processes, to keep the suite's digest."""
    for name in _SETS & kwargs.keys():
        if isinstance(kwargs[name], list):
            kwargs[name].sort(key=lambda item: json.dumps(item, sort_keys=True))


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | np.integer) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return None
    return float(value) if math.isfinite(value) else None


if __name__ == "__main__":
    main()
