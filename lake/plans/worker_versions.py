"""What workers of a cluster run, held against what the driver runs, before they are sent any work.

A worker of another version reads a task otherwise, or not at all, and says so by some attribute that is not there. Of
another deltalake or pyarrow it writes files that no test has seen together; by other contracts it writes other rows.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ranklake.lake.plans.workers import WorkersError

Versions = dict[str, str]


def probe() -> Callable[[], Versions]:
    """Return a function that tells the versions where it is called.

    It is made here each time so that it travels whole: a worker of another version may not have this module.
    """

    def versions() -> Versions:
        import hashlib
        import platform
        from importlib.metadata import PackageNotFoundError, version
        from importlib.util import find_spec
        from pathlib import Path

        found = {"Python": platform.python_version().rpartition(".")[0]}
        for name in ("ranklake", "pyarrow", "deltalake"):
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = "none"
        spec = find_spec("ranklake.lake.contracts") if found["ranklake"] != "none" else None
        files = sorted(Path(spec.origin).parent.rglob("*.yaml")) if spec and spec.origin else []
        texts = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files))
        found["contracts"] = texts.hexdigest()[:12] if files else "none"
        return found

    return versions


def ask(client: Any, workers: list[str] | None = None) -> Mapping[str, Versions]:  # noqa: ANN401 - distributed ships no types
    """Return the versions of the workers of a cluster, or some of them, by address. Raises `WorkersError`."""
    try:
        found: Mapping[str, Versions] = client.run(probe(), workers=workers)
    except Exception as error:
        hint = "install the driver's versions on the workers and start them again"
        raise WorkersError(f"workers do not tell their versions: {type(error).__name__}: {error}", hint=hint) from error
    return found


def compare(told: Mapping[str, Versions]) -> None:
    """Raise `WorkersError` for the first worker that runs something else than this process, naming both."""
    here = probe()()
    for worker, there in sorted(told.items()):
        other = [
            f"{name} {there.get(name, 'none')} (here {mine})" for name, mine in here.items() if there.get(name) != mine
        ]
        if other:
            hint = "install the driver's versions on all workers and start them again"
            raise WorkersError(f"a Dask worker runs {', '.join(other)}", where=worker, hint=hint)
