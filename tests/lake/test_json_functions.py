"""Values out of columns of JSON, in SQL."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from importing import ask, imported

from ranklake.insight.runs.find import flat
from ranklake.lake.query.engine import engine, json_number, json_text
from ranklake.lake.query.sql import QueryError

LEAVES = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=5)
KEYS = st.text("ab/ é'", min_size=1, max_size=4)
CONFIGS = st.dictionaries(
    KEYS, st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner, max_size=3)), max_size=4
)


@given(CONFIGS)
def test_every_setting_is_found_by_its_path(config):
    """A value is found by the name that `runs --where` gives it."""
    leaves = [(path, value) for path, value in flat(config) if value != {}]
    paths = pa.array([path for path, _ in leaves], pa.string())
    texts = pa.array([json.dumps(config)] * len(leaves), pa.string())
    assert json_text(texts, paths).to_pylist() == [
        value if isinstance(value, str) or value is None else json.dumps(value) for _, value in leaves
    ]
    numbers = json_number(texts, paths).to_pylist()
    assert all(
        number == value
        for number, (_, value) in zip(numbers, leaves, strict=True)
        if isinstance(value, int) and not isinstance(value, bool)
    )


@pytest.mark.parametrize(
    ("path", "text", "number"),
    [
        ("lr", "0.1", 0.1), ("opt.name", "adam", None), ("opt", '{"name":"adam"}', None), ("a.b", "2", 2.0),
        ("list.1", "4", 4.0), ("list.9", None, None), ("on", "true", None), ("big", "1e999", None), ("", None, None),
        ("lr.x", None, None), ("opt.", None, None), ("none", None, None),
    ],
)  # fmt: skip
def test_a_path(path, text, number):
    """Keys within objects and lists; a key with dots goes before; what is no number, or too large, is NULL."""
    config = {"lr": 0.1, "opt": {"name": "adam"}, "a.b": 2, "a": {"b": 3}, "list": [3, 4], "on": True, "big": "1e999",
              "none": None}  # fmt: skip
    ctx = engine()
    ctx.from_arrow(pa.table({"config": [json.dumps(config), "{", None]}), name="runs")
    rows = ctx.sql(f"SELECT json_text(config, '{path}') t, json_number(config, '{path}') n FROM runs").to_pylist()
    assert rows == [{"t": text, "n": number}, *[{"t": None, "n": None}] * 2]


def test_runs_by_a_setting(lake, spool, tmp_path):
    """Runs are chosen by a setting in the query of their values; PostgreSQL's operator is told what to write."""
    for name, rate in (("a", 0.1), ("b", 0.2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.csv").write_text("loss,step,epoch\n2.5,1,0\n")
        (tmp_path / name / "hparams.yaml").write_text(f"lr: {rate}\n")
    imported(lake, spool, "lightning", tmp_path)
    sql = (
        "SELECT run, value FROM scalars JOIN runs USING (run)"
        " WHERE json_number(config, 'lr') > 0.15 AND metric = 'loss'"
    )
    assert ask(lake, sql) == [{"run": "b", "value": 2.5}]
    with pytest.raises(QueryError, match=r"Operator ->> is not yet supported; write json_text\(column, 'key'\)"):
        ask(lake, "SELECT config->>'lr' FROM runs")
