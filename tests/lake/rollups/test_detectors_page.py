"""The page about detectors names each of them."""

from pathlib import Path

from ranklake.lake.rollups.detectors.registry import NODE_DETECTORS, RUN_DETECTORS

PAGE = Path(__file__).resolve().parents[3] / "docs/detectors.md"


def test_each_detector_stands_in_the_table_of_its_kind():
    """In no other, and nothing else stands there."""
    text = PAGE.read_text(encoding="utf-8").split("## Thresholds")[0]
    of_runs, of_nodes = (
        part.split("`")[1::2] for part in text.partition("| of runs |")[2].split("| of devices and hosts |")
    )
    assert sorted(set(of_runs) - {"device_gib"}) == sorted(each.name for each in RUN_DETECTORS)
    assert {each.name for each in NODE_DETECTORS} <= set(of_nodes)
    assert not set(of_nodes) & set(of_runs) - {"memory_growth"}
