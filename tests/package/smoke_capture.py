"""Record a run under an installed wheel, with base dependencies, and read it back; RANKLAKE_NATIVE=1 expects C.

Run by `check_distributions.py`, and by cibuildwheel (`pyproject.toml`) for each wheel of a release.
"""

import os
import subprocess
import sys
from pathlib import Path

HEAVY = ("prefect", "dask", "deltalake", "datafusion", "great_expectations", "pandas", "torch")
TIMED = """
import time, pyarrow, fsspec
start = time.perf_counter()
import ranklake.capture
print(time.perf_counter() - start)
import sys
print(",".join(name for name in %r if name in sys.modules))
"""


def main(scratch: Path) -> None:
    """Check the import, then record, close, and read the segments."""
    took = []
    for _ in range(3):
        lines = subprocess.run(
            [sys.executable, "-I", "-c", TIMED % (HEAVY,)], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        took.append(float(lines[0]))
        assert len(lines) == 1 or not lines[1], f"import ranklake.capture loads {lines[1]}"
    assert min(took) < 0.3, f"import ranklake.capture takes {min(took):.2f} s more than pyarrow and fsspec"

    from ranklake import capture
    from ranklake.capture.common.native import MODULE

    assert os.environ.get("RANKLAKE_NATIVE") != "1" or MODULE is not None, "the wheel has no hot path in C"
    spool = scratch / "spool"
    with capture.start(job="smoke", run="smoke-1", spool=str(spool), local_dir=str(scratch / "local")) as run:
        for number in range(20):
            with run.step(number, tokens=8):
                with run.phase("forward"):
                    pass
                run.log(loss=1.0 / (number + 1))

    import pyarrow.parquet as pq

    rows = sum(pq.read_metadata(path).num_rows for path in spool.glob("segments/*/steps/*.parquet"))
    assert rows == 20, f"{rows} of 20 steps came back"
    path = "Python" if MODULE is None else "C"
    print(f"smoke: import {min(took):.3f} s more than pyarrow and fsspec; 20 steps recorded by {path} and read back")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
