"""A process that has imported the modules of flow runs and forks a process for each run. It saves 3 to 4 CPU seconds.

    worker ──▶ leash ──▶ client ── its environment, folder, streams ──▶ warm process ──fork──▶ the run
                           ◀─────────────── wait status ──────────────────────┘

The client represents its run: `ranklake.flows.serving.runs` finds runs by its environment, it passes SIGTERM and SIGINT
on, and it ends as the run does. A run whose client is gone kills itself. Without a warm process, the client becomes the
run. A run is a separate process, so faults and leaks end with it.

The warm process only imports and forks, in one thread, so that no lock or connection is shared. Each run reads the
configuration. After an installation of packages, a fork would mix old and new modules: requests are then refused, the
clients become their runs, and the warm process ends after its last run and is restarted.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import sysconfig
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

SOCKET: Final = "warm.sock"
PRELOADED: Final = (
    "prefect.flow_engine",
    "prefect._internal.metrics",
    "ranklake.flows.stage_flows",
    "ranklake.lake.plans.dask_workers",
    "dask.utils",
    "fastapi.encoders",
)
_SELF: Final = (sys.executable, "-m", "ranklake.flows.serving.warm")
_PR_SET_PDEATHSIG: Final = 1
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT)
_STREAMS: Final = (0, 1, 2)
_PATIENCE_S: Final = 10.0
_LENGTH: Final = struct.Struct("!I")
_STATUS: Final = struct.Struct("!i")
_REFUSED: Final = -1
"""Replaces the wait status if a request is refused and the client has to run the module itself."""


class Request(NamedTuple):
    """Request of a client; `streams` are the descriptors for 0, 1 and 2."""

    module: str
    arguments: list[str]
    folder: str
    environment: dict[str, str]
    streams: list[int]
    connection: socket.socket


def warm_command(home: Path) -> list[str]:
    """Return the command of a home's warm process."""
    return [*_SELF, "serve", str(home)]


def run_command(home: Path, module: str) -> list[str]:
    """Return the command that runs a module by a home's warm process; arguments may be appended."""
    return [*_SELF, "run", str(home), module]


def ask(home: str, module: str, arguments: Sequence[str]) -> int:
    """Run a module by a home's warm process, and return its wait status.

    Raises `OSError` if no warm process runs, or if packages were installed since its start.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        with _socket_path(home) as place:
            connection.connect(place)
        facts = [module, list(arguments), str(Path.cwd()), dict(os.environ)]
        body = json.dumps(facts).encode("utf-8", "surrogatepass")
        socket.send_fds(connection, [_LENGTH.pack(len(body))], _STREAMS)
        connection.sendall(body)
        for number in _PASSED_ON:
            signal.signal(number, lambda signum, _frame: connection.sendall(bytes([signum])))
        status = _receive(connection, _STATUS.size)
    code = signal.SIGKILL if status is None else int(_STATUS.unpack(status)[0])
    if code == _REFUSED:
        raise ConnectionRefusedError
    return code


def serve(home: str, preloaded: Sequence[str] = PRELOADED) -> Request:
    """Import modules, then fork a process for each request. Returns in the forked processes only."""
    with contextlib.suppress(FileNotFoundError):
        Path(home, SOCKET).unlink()
    packages = _packages()
    for name in preloaded:
        importlib.import_module(name)
    if contracts := sys.modules.get("ranklake.lake.contracts.load"):
        contracts.load_contracts()  # the contracts of this release do not change
    gc.collect()
    gc.freeze()  # forks share the pages of these objects
    with socket.socket(socket.AF_UNIX) as listener:
        with _socket_path(home) as place:
            listener.bind(place)
        listener.listen()
        return _forked(listener, packages)


def _packages() -> list[int]:
    """Return the modification times of the package folders, which change with each installation or removal."""
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    return [Path(folder).stat().st_mtime_ns for folder in sorted(folders)]


def _forked(listener: socket.socket, packages: list[int]) -> Request:
    """Fork for each request, and send clients the wait status; return the request in the forked process.

    Exits after packages changed and the last run ended.
    """
    running: dict[int, socket.socket] = {}
    ended, notify = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(notify)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    parent = os.getpid()
    while True:
        ready, _, _ = select.select([listener.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _reap(running)
        request = _request(listener) if listener.fileno() in ready else None
        is_outdated = _packages() != packages
        if is_outdated and request is not None:
            _refuse(request)
            request = None
        if is_outdated and not running:
            sys.exit("packages were installed")
        if request is None:
            continue
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for other in running.values():
                other.close()
            os.close(ended)
            os.close(notify)
            _die_with(parent)
            return request
        running[pid] = request.connection
        for stream in request.streams:
            os.close(stream)


def _refuse(request: Request) -> None:
    """Refuse a request, so that the client runs the module itself."""
    with contextlib.suppress(OSError), request.connection:
        request.connection.sendall(_STATUS.pack(_REFUSED))
    for stream in request.streams:
        os.close(stream)


def _reap(running: dict[int, socket.socket]) -> None:
    """Send the clients of ended runs the wait status."""
    for pid, connection in list(running.items()):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            with contextlib.suppress(OSError), connection:  # the client may be gone
                connection.sendall(_STATUS.pack(status))
            del running[pid]


def _request(listener: socket.socket) -> Request | None:
    """Accept a request; None if the client ends before it is complete."""
    connection, _ = listener.accept()
    streams: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        connection.settimeout(_PATIENCE_S)
        length, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, len(_STREAMS))
        body = _receive(connection, *_LENGTH.unpack(length)) if len(length) == _LENGTH.size else None
        if body is not None and len(streams) == len(_STREAMS):
            connection.settimeout(None)
            module, arguments, folder, environment = json.loads(body.decode("utf-8", "surrogatepass"))
            return Request(module, arguments, folder, environment, streams, connection)
    for stream in streams:
        os.close(stream)
    connection.close()
    return None


def _receive(connection: socket.socket, count: int) -> bytes | None:
    """Receive `count` bytes; None if the other side ends before."""
    parts = []
    while count:
        try:
            part = connection.recv(min(count, 1 << 16))
        except ConnectionError:
            return None
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def run(request: Request) -> None:
    """Run the requested module in its folder and environment, with its streams and signals."""
    os.setsid()
    for place, stream in zip(_STREAMS, request.streams, strict=True):
        os.dup2(stream, place)
        os.close(stream)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_forward_signals, args=(request.connection,), daemon=True).start()
    if "prefect.context" in sys.modules:  # Prefect read its settings from another environment at import
        sys.modules["prefect.context"].refresh_global_settings_context()
    sys.argv = [request.module, *request.arguments]
    warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


def _forward_signals(connection: socket.socket) -> None:
    """Receive the client's signals; when the client is gone, kill this run's process group."""
    while number := _receive(connection, 1):
        os.kill(os.getpid(), number[0])
    os.killpg(0, signal.SIGKILL)


@contextlib.contextmanager
def _socket_path(home: str) -> Iterator[str]:
    """Yield a short path of a home's socket: the system allows 107 characters."""
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)


def main(kind: str, home: str, *words: str) -> None:
    """Serve as a warm process (``serve HOME MODULE …``), or run a module by one (``run HOME MODULE ARGUMENT …``)."""
    if kind == "serve":
        run(serve(home, words or PRELOADED))
        return
    module, *arguments = words
    try:
        status = ask(home, module, arguments)
    except OSError:  # no warm process runs yet
        os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - an argument list, no shell
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
