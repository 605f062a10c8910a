"""Ten numbers of a run's page, of an import of MLPerf's logs: each reaches exact segments, and all digests verify."""

from pathlib import Path

import pytest
from importing import imported
from lineage_of_pages import follow, followed

from ranklake.cli import run
from ranklake.lake.rollups.runner import run_rollups


@pytest.mark.slow
@pytest.mark.leaky("the drawing library keeps its files open")
def test_ten_numbers_of_an_imported_run(lake, spool, published, tmp_path, capsys):
    """By the page's own commands; a flipped byte of a segment is then named by each number that came of it."""
    logs = published("mlperf") / "mlperf" / "v4.0" / "NVIDIA__eos_ngc24.04_nemo_llama2_70b_lora"
    imported(lake, spool, "mlperf", logs / "result_0.txt.gz", run="lora")
    run_rollups(lake)
    assert run(["report", "runs", "--out", str(tmp_path / "site"), "--lake", lake.uri]) == 0
    (page,) = (tmp_path / "site/runs").glob("run-lora-*.html")
    places = ["--lake", lake.uri, "--spool", str(spool)]
    segments = followed(page.read_text(encoding="utf-8"), places, capsys)
    victim = Path(min(set.union(*segments.values())).partition("#")[0])
    raw = bytearray(victim.read_bytes())
    raw[len(raw) // 2] ^= 1
    victim.write_bytes(raw)
    for command, paths in segments.items():
        is_hit = any(str(victim) in path for path in paths)
        status, result = follow(command, places, capsys)
        assert status == int(is_hit), command
        assert any(str(victim) in fault["text"] for fault in result["faults"]) == is_hit
