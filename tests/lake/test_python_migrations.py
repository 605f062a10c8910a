"""Migrations in Python: columns that a function makes of others, run where the operator's folder has it alone."""

import ast

import pyarrow as pa
import pytest
from bringing import adds_up, bring
from governed import under
from overlays import written
from own_table import TABLE, rows
from segments import put_segment

from ranklake.cli import run
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.migration_file import NoMigrationFileError, facts_of
from ranklake.lake.contracts.overlay import Overlay
from ranklake.lake.migrations import applying
from ranklake.lake.migrations.due import due
from ranklake.lake.migrations.migration import parse_migration
from ranklake.lake.migrations.proof import verify
from ranklake.lake.migrations.queries.rewrite import rewrite
from ranklake.lake.migrations.queries.tables import load_tables
from ranklake.lake.migrations.steps.code import Code, UntrustedCodeError
from ranklake.lake.migrations.steps.compute import Compute
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.store.store import Lake

LATER = (
    TABLE.replace("version: 1", "version: 2")
    .replace('{id: 21, name: wait_ms, type: float64, unit: ms, class: operational, doc: "Wait."}',
             '{id: 23, name: wait_us, type: int64, unit: us, class: operational, doc: "Wait."}')
    + 'retired:\n  - {id: 21, name: wait_ms, type: float64, retired_in: 2, reason: "whole numbers"}\n'
)  # fmt: skip
STEP = """{"compute": {"wait_ms": "float64"}, "into": {"wait_us": "int64"}, "by": "whole", "back": "parts"}"""
FUNCTIONS = '''

import pyarrow.compute as pc

THOUSAND = 1000.0


def whole(batch):
    """Return waits in whole microseconds."""
    values = pc.round(pc.multiply(batch["wait_ms"], THOUSAND)).cast(pa.int64())
    return pa.RecordBatch.from_arrays([values], names=["wait_us"])


def parts(batch):
    """Return waits in milliseconds."""
    values = pc.divide(batch["wait_us"].cast(pa.float64()), THOUSAND)
    return pa.RecordBatch.from_arrays([values], names=["wait_ms"])
'''


@pytest.fixture
def own(tmp_path):
    """Return a folder of contracts."""
    return written(tmp_path / "own", {"rollouts.yaml": TABLE})


@pytest.mark.slow
def test_a_function_makes_columns_and_takes_them_back(lake, spool, own, capfd):
    """Stored rows, rows of older writers and rows that came since; a lake without the folder runs nothing."""
    put_segment(spool, rows(own, 5), table="rollouts")
    assert bring(under(lake, own), spool).rows_stored == 5
    place = ["--lake", lake.uri, "--contracts", str(own)]
    put_segment(spool, rows(own, 3, segment=1), table="rollouts", rows_before=5)
    written(own, {"rollouts.yaml": LATER})
    assert run(["migrate", "new", "rollouts", "whole", "--python", *place]) == 0
    path = own / "migrations" / "10001_whole.py"
    text = path.read_text(encoding="utf-8")
    begin, end = text.index("[{'drop'"), text.index("]}") + 1
    path.write_text(text[:begin] + f"[{STEP}]" + text[end:] + FUNCTIONS, encoding="utf-8")

    known = under(Lake.open(lake.uri), own)
    known.keep_overlay()
    bare = Lake.open(lake.uri)
    assert [one.migration.label for one in due(bare)] == ["10001_whole"], "it is read anywhere"
    with pytest.raises(UntrustedCodeError, match="only where your folder of contracts has it"):
        applying.apply(bare, InProcess(), "Mallory")
    assert query(bare, "SELECT max(wait_ms) w FROM rollouts").to_pylist() == [{"w": 250.0}]

    capfd.readouterr()
    assert run(["migrate", "plan", "rollouts", *place]) == 0
    assert "compute wait_us of wait_ms by whole, in Python" in capfd.readouterr().out
    assert run(["migrate", "preview", "rollouts", *place]) == 0
    assert run(["migrate", "apply", "rollouts", *place]) == 0
    with pytest.raises(UntrustedCodeError):
        bring(Lake.open(lake.uri), spool)
    assert bring(known, spool).rows_stored == 3, "nothing was quarantined meanwhile"
    put_segment(spool, rows(own, 2, segment=2), table="rollouts", rows_before=8)
    assert bring(known, spool).rows_stored == 2
    found = query(known, "SELECT count(*) n, count(wait_us) w, max(wait_us) m FROM rollouts").to_pylist()
    assert found == [{"n": 10, "w": 8, "m": 250_000}]
    assert verify(known, "rollouts").faults == []
    asked = rewrite("SELECT wait_ms FROM rollouts", load_tables(overlay=known.overlay))
    assert ["wait_ms is no more" in one.what for one in asked.findings] == [True]
    adds_up(known, spool)

    assert applying.undo(known, InProcess(), "Ada", "rollouts").version == 1
    written(own, {"rollouts.yaml": TABLE})
    path.unlink()
    (own / "snapshots" / "rollouts.v1.json").unlink()
    back = under(Lake.open(lake.uri), own)
    found = query(back, "SELECT count(*) n, count(wait_ms) w, max(wait_ms) m FROM rollouts").to_pylist()
    assert found == [{"n": 10, "w": 8, "m": 250.0}]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("MIGRATION = {}\nimport os\n", "line 2: os may not be imported"),
        ("from . import x\nMIGRATION = {}\n", "a module beside it may not be imported"),
        ("MIGRATION = {}\nprint(1)\n", "line 2: neither an import, a constant nor a function"),
        ("MIGRATION = dict(number=1)\n", "line 1: a constant that is no literal"),
        ("def f(b):\n    return open('x')\nMIGRATION = {}\n", "line 2: open is no function of rows"),
        ("def f(b):\n    return b.__class__\nMIGRATION = {}\n", "line 2: __class__ is no function of rows"),
        ("def f(b):\n    global N\nMIGRATION = {}\n", "keeps nothing between calls"),
        ("class A:\n    pass\nMIGRATION = {}\n", "neither an import, a constant nor a function"),
        ("N = 1\n", "says no MIGRATION"),
        ("MIGRATION = {\n", "no Python"),
        ("import pyarrow.parquet\nMIGRATION = {}\n", "pyarrow.parquet may not be imported"),
    ],
)
def test_a_file_that_does_more_is_not_even_read(text, what):
    """It has facts, functions and what they need; nothing of it is run to say so."""
    with pytest.raises(NoMigrationFileError, match=what):
        facts_of(text, is_python=True)


def computed(body, rows, into=(("b", "int64"),), **more):
    """Return rows after a step whose function has a body."""
    head = "import pyarrow as pa\nimport pyarrow.compute as pc\n\n\ndef f(batch):\n    "
    code = Code(f"{head}{body}\n", "0001_x.py", is_trusted=True)
    return Compute((("a", "int64"),), into, "f", code=code, **more).rows(rows)


MADE = "return pa.RecordBatch.from_arrays([{}], names=['b'])"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (MADE.format("pc.add(batch['a'], pc.sum(batch['a']))"), "looks at more than its row"),
        (MADE.format("pa.array(range(batch.num_rows))"), "looks at more than its row"),
        (MADE.format("pc.add(batch['a'], batch['a'][0])"), "looks at more than its row"),
        (MADE.format("pc.cast(pc.multiply(pc.random(batch.num_rows), 1e9), 'int64', safe=False)"), "each time"),
        (MADE.format("batch['a'].slice(1)"), "no record batch of as many rows"),
        (MADE.format("batch['a'].cast('string')"), "gives b: string, and the step says b: int64"),
        ("return batch['a']", "no record batch of as many rows"),
        ("raise ValueError(str(batch['a'][0]))", "f fails with ValueError$"),
    ],
)
def test_a_function_is_of_one_row(body, what):
    """It gives as many rows, of the types that the step says, and the same in another order."""
    some = pa.table({"a": pa.array([1, 2, 3, None], pa.int64()), "run": ["x"] * 4})
    with pytest.raises(pa.ArrowInvalid, match=what):
        computed(body, some)


def test_what_does_not_come_back_stops():
    """Each row is held to `back`, as in steps of SQL."""
    code = Code(
        "import pyarrow as pa\n\n\n"
        "def half(batch):\n    values = pa.array([value.as_py() // 2 for value in batch['a']])\n"
        "    return pa.RecordBatch.from_arrays([values], ['b'])\n\n\n"
        "def twice(batch):\n    values = pa.array([value.as_py() * 2 for value in batch['b']])\n"
        "    return pa.RecordBatch.from_arrays([values], ['a'])\n",
        "0001_x.py",
        is_trusted=True,
    )
    step = Compute((("a", "int64"),), (("b", "int64"),), "half", "twice", code)
    assert step.rows(pa.table({"a": pa.array([2, 4], pa.int64())}))["b"].to_pylist() == [1, 2]
    with pytest.raises(pa.ArrowInvalid, match="1 of 2 values of a would not come back"):
        step.rows(pa.table({"a": pa.array([2, 5], pa.int64())}))
    assert step.lost == ()
    assert Compute(step.columns, step.into, "half").lost == ("a",), "somebody approves what is lost"


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("0001_x.yaml", "steps: [{compute: {a: int64}, into: {b: int64}, by: f}]", "this is no Python file"),
        (
            "0001_x.py",
            "MIGRATION = {'steps': [{'compute': {'a': 'int64'}, 'into': 'b', 'by': 'f'}]}",
            "into of compute",
        ),
        ("0001_y.py", "MIGRATION = {'steps': [{'drop': 'a'}]}", "not named 0001_x.py"),
    ],
)
def test_a_step_that_cannot_be_is_named(tmp_path, name, text, what):
    """With the file; a Python file may have the steps of YAML, too."""
    rest = {"number": 1, "name": "x", "table": "t", "from": 1, "to": 2, "digests": {"from": "", "to": ""}}
    if name.endswith(".py"):
        text = f"MIGRATION = {rest | ast.literal_eval(text.partition(' = ')[2])}"
    else:
        text = f"{text}\n" + "".join(f"{key}: {value!r}\n".replace("'", '"') for key, value in rest.items())
    with pytest.raises(MigrationError, match=what):
        parse_migration(text.encode(), tmp_path / name, is_trusted=True)


def test_what_a_stream_or_a_lake_brings_is_not_run(own):
    """Only what was read of a folder is trusted; texts alone are not."""
    file = written(own, {"migrations/10001_x.py": "MIGRATION = {}\n"})
    found = Overlay.read(file)
    assert found.code == {"MIGRATION = {}\n"}
    assert Overlay(found.files, "the stream's overlay").code == frozenset()
    assert found != Overlay(found.files, found.origin)
    assert contract("rollouts", own).operators.code == found.code
