"""What every test is held to: it leaves no thread and no file descriptor behind."""

import gc
import os
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# So that a failed assertion in them says what it found.
pytest.register_assert_rewrite(
    "tests.support", *(file.stem for file in (Path(__file__).parent / "support").glob("*.py"))
)

# A machine that others use draws slowly, which says nothing of the code. In CI the same examples come every time: a new
# one that fails is found by whoever works on the code, not by who lands next.
for name, same in (("here", False), ("ci", True)):
    settings.register_profile(name, derandomize=same, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "here")

# A test that wants samples says so: elsewhere they would come or not, as long as it takes.
os.environ.setdefault("RANKLAKE_CAPTURE_SAMPLERS", "off")
os.environ.setdefault("RANKLAKE_CAPTURE_STARTUP", "off")
os.environ.setdefault("RANKLAKE_CAPTURE_ANNOUNCE", "off")

LONGEST = ("test_demo.py", "test_runs.py")
PATIENCE_S = 20.0
COLLECT_AFTER_S = 0.03  # threads that end need a moment; a collection takes tenths of a second where much is loaded
ONE_PER_PROCESS = {
    "tqdm_monitor",
    "fsspecIO",
    "Dask-Offload_0",
    "gcsfs-deferred-close",
}  # threads that libraries start once and keep
NOT_OURS = ("anon_inode:", "socket:")  # delta-rs and datafusion keep an event loop each, from their first use on
LOGS = "/_delta_log/"  # delta-rs reads these in threads of its own; on a busy machine they close them late


def pytest_addoption(parser):
    """Add ``--part 2/4``: of the tests that would run, each fourth, from the second on."""
    parser.addoption("--part", default="1/1", metavar="K/N", help="run only each N-th test, from the K-th on")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Keep the part that is asked for; begin with the files that have most tests, so that none is left over at the end.

    Of slow tests, the demo's and the flows' files come first: they take a minute and more.
    """
    first, parts = map(int, config.getoption("part").split("/"))
    in_order = sorted(items, key=lambda item: item.nodeid)
    kept = set(in_order[first - 1 :: parts])
    config.hook.pytest_deselected(items=[item for item in in_order if item not in kept])
    items[:] = [item for item in items if item in kept]
    every = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.name not in LONGEST, -every[item.path]))


def _open_files():
    """Return {descriptor: what it leads to} of this process."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            found[int(link.name)] = str(link.readlink())
        except OSError:  # the descriptor that listed the folder
            continue
    return found


def _is_kept(name):
    """Say whether a library keeps a thread; ``asyncio_…`` look up hosts for the one event loop of fsspec."""
    return name in ONE_PER_PROCESS or name.startswith("asyncio_")


def _new_threads(before):
    now = (thread for thread in threading.enumerate() if not _is_kept(thread.name))
    return [thread for thread in now if thread not in before and thread.is_alive()]


def _new_files(before):
    now = _open_files()
    ours = {fd: target for fd, target in now.items() if not target.startswith(NOT_OURS) and LOGS not in target}
    return {fd: target for fd, target in ours.items() if before.get(fd) != target}


@pytest.fixture(autouse=True)
def no_terminal():
    """Cut no table at the width of the terminal that the tests run in, or that a library put into the environment."""
    os.environ.pop("COLUMNS", None)


@pytest.fixture(autouse=True)
def no_leaks(request):
    """Fail a test that leaves a thread running or a file open; `@pytest.mark.leaky("reason")` lets it."""
    if request.node.get_closest_marker("leaky"):
        yield
        return
    threads, files = set(threading.enumerate()), _open_files()
    yield
    deadline, pause_s = time.monotonic() + PATIENCE_S, 0.002
    while (_new_threads(threads) or _new_files(files)) and time.monotonic() < deadline:
        if pause_s > COLLECT_AFTER_S:
            gc.collect()
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.2)
    left = [thread.name for thread in _new_threads(threads)]
    assert not left, f"threads left running: {left}"
    opened = _new_files(files)
    assert not opened, f"files left open: {opened}"
