"""Tables by a mapping: what converts is stored, what does not is in quarantine, and everything is counted."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bringing import bring
from hypothesis import given, settings
from hypothesis import strategies as st
from importing import ask, imported, rejects

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.mapping import MappingError
from ranklake.capture.importers.mapping_reader import load_mapping
from ranklake.capture.importers.source import SourceError
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.limits import Limits

MAPPING = """
table: pools
time: {column: when}
columns:
  pool: name
  gpu_total: total
  job_running: {column: running, missing: ["", "-"]}
  interval_ns: {column: length, unit: min}
  gpu_utilization_ratio: {column: busy, unit: percent}
  gpu_type: {column: kind, values: {h: H100, a: A100}}
"""
HEADER = "when,name,total,running,length,busy,kind\n"


def written(path, text, *, encoding="utf-8"):
    path.write_bytes(text.encode(encoding) if isinstance(text, str) else text)
    return path


@pytest.fixture
def mapping(tmp_path):
    return str(written(tmp_path / "m.yaml", MAPPING))


def test_values_are_converted(lake, spool, tmp_path, mapping):
    """Units, words, missing values and times become the contract's."""
    file = written(
        tmp_path / "vc.csv", HEADER + "2020-05-01 00:01:00,x,8,-,1,25,h\n2020-05-01T08:00:00+08:00,y,8.5,3,0.5,100,a\n"
    )
    done = imported(lake, spool, "table", file, mapping=mapping)
    assert (done.rows, done.refused, done.runs) == ({"pools": 2, "runs": 1}, {}, ["vc"])
    wanted = (
        "SELECT ts, pool, gpu_total, job_running, interval_ns, gpu_utilization_ratio u, gpu_type FROM pools ORDER BY ts"
    )
    late, early = ask(lake, wanted)[::-1]
    assert (str(early["ts"]), early["pool"], early["gpu_total"]) == ("2020-05-01 00:00:00+00:00", "y", 8.5)
    assert (early["job_running"], early["interval_ns"], early["u"], early["gpu_type"]) == (3, 30 * 10**9, 1.0, "A100")
    assert (late["job_running"], late["interval_ns"], late["u"], late["gpu_type"]) == (None, 60 * 10**9, 0.25, "H100")


def test_what_does_not_convert_is_in_quarantine(lake, spool, tmp_path, mapping):
    """Each bad row is refused whole, with the column in its reason, never a value, and the row as it was."""
    good = "2020-05-01,x,8,1,1,25,h\n"
    bad = ["2020-05-41,x,8,1,1,25,h", "2020-05-01,x,many,1,1,25,h", "2020-05-01,x,8,1.5,1,25,h",
           "2020-05-01,x,8,1,1,25,z", "2020-05-01,x,8", ",x,8,1,1,25,h", "2020-05-01,x,8 W,1,1,25,h"]  # fmt: skip
    file = written(tmp_path / "vc.csv", HEADER + good + "\n".join(bad) + "\n" + good)
    done = imported(lake, spool, "table", file, mapping=mapping)
    assert done.rows["pools"] == 2
    assert sum(done.refused.values()) == len(bad)
    found = rejects(lake)
    assert {row["table"] for row in found} == {"pools"}
    reasons = sorted(row["reason"] for row in found)
    assert reasons == [
        "import: 3 fields instead of 7",
        "import: gpu_total: not a number",
        "import: gpu_total: not a number",
        "import: gpu_type: a value that the mapping does not list",
        "import: job_running: not an integer",
        "import: time: missing",
        "import: time: not a time",
    ]
    texts = [json.loads(json.loads(row["row"])["refused_row"]) for row in found]
    assert any('"many"' in text["text"] for text in texts)
    assert {text["file"] for text in texts} == {"vc.csv"}


def test_again_stores_nothing_twice(lake, spool, tmp_path, mapping):
    """The same file gives the same rows, whoever imports it; a changed one is refused, and says so."""
    file = written(tmp_path / "vc.csv", HEADER + "2020-05-01,x,8,1,1,25,h\n" + "2020-05-01,x,no,1,1,25,h\n")
    imported(lake, spool, "table", file, mapping=mapping)
    before = sorted(path.name for path in spool.rglob("*") if path.suffix in {".zip", ".parquet"})
    again = imported(lake, spool, "table", file, mapping=mapping)
    assert again.again == 1
    assert sorted(path.name for path in spool.rglob("*") if path.suffix in {".zip", ".parquet"}) == before
    assert not import_files("table", [str(file)], str(tmp_path / "other"), mapping=mapping).again
    assert bring(lake, tmp_path / "other").rows_stored == 0
    assert ask(lake, "SELECT count(*) n FROM pools") == [{"n": 1}]
    assert len(rejects(lake)) == 1
    written(file, HEADER + "2020-05-02,x,8,1,1,25,h\n")
    with pytest.raises(SourceError, match=r"vc\.csv: the file changed since it was imported into run vc on 2"):
        import_files("table", [str(file)], str(spool), mapping=mapping)
    assert imported(lake, spool, "table", file, mapping=mapping, run="second").rows["pools"] == 1


@pytest.mark.parametrize("kind", ["csv", "gz", "crlf", "bom", "semicolons", "jsonl", "parquet"])
def test_whatever_the_file_is_like(lake, spool, tmp_path, mapping, kind):
    """Endings, marks, separators and containers make no difference."""
    row = "2020-05-01,x,8,1,1,25,h\n"
    of = dict(zip(HEADER.strip().split(","), row.strip().split(","), strict=True))
    file = tmp_path / "vc"
    if kind == "gz":
        written(file, gzip.compress((HEADER + row).encode()))
    elif kind == "jsonl":
        written(file, json.dumps(of | {"total": 8, "busy": 25.0}) + "\n\n")
    elif kind == "parquet":
        pq.write_table(pa.table({name: [int(word) if word.isdigit() else word] for name, word in of.items()}), file)
    else:
        text = HEADER + row
        text = text.replace("\n", "\r\n") if kind == "crlf" else text
        text = text.replace(",", ";") if kind == "semicolons" else text
        written(file, text, encoding="utf-8-sig" if kind == "bom" else "utf-8")
    imported(lake, spool, "table", file, mapping=mapping)
    assert ask(lake, "SELECT pool, gpu_total, gpu_utilization_ratio u FROM pools") == [
        {"pool": "x", "gpu_total": 8.0, "u": 0.25}
    ]


def test_bytes_that_are_no_text(lake, spool, tmp_path, mapping):
    """A row that is not UTF-8 is refused alone."""
    row = b"2020-05-01,x,8,1,1,25,h\n"
    file = written(tmp_path / "vc.csv", HEADER.encode() + row + row.replace(b"x", b"\xff\xfe") + row)
    done = imported(lake, spool, "table", file, mapping=mapping)
    assert (done.rows["pools"], done.refused) == (2, {"pool: text that is not UTF-8": 1})


def test_a_cut_archive_gives_what_is_there(lake, spool, tmp_path, mapping):
    """What comes before the cut is imported, and the cut is told and counted."""
    rows = "".join(f"2020-05-01,x{n * 7919 % 10007},8,1,1,25,h\n" for n in range(200_000))
    whole = gzip.compress((HEADER + rows).encode())
    file = written(tmp_path / "vc.csv.gz", whole[: len(whole) // 2])
    done = imported(lake, spool, "table", file, mapping=mapping)
    assert done.cut == {"vc.csv.gz": "the gzip archive is cut off"}
    assert 0 < done.rows["pools"] < 200_000
    assert done.refused["the gzip archive is cut off"] == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "vc.csv: the file is empty"),
        (b"\n\n", "the file has no readable content"),
        (b"\xff\xfew\0h\0", "the text is UTF-16; convert it"),
        (b"PAR1 and no more", "not readable as Parquet"),
        (b"when,name\n", "m.yaml:6: no column 'total' in vc.csv; known: name, when"),
        (HEADER.replace("total", "totals").encode(), "m.yaml:6: no column 'total' in vc.csv; did you mean 'totals'?"),
        (b"a,a\n1,2\n", "column 'a' appears twice"),
    ],
)
def test_files_that_are_no_such_table(spool, tmp_path, mapping, content, said):
    """What cannot be imported at all is refused in one line, and nothing is written."""
    file = written(tmp_path / "vc.csv", content)
    with pytest.raises((SourceError, MappingError)) as refused:
        import_files("table", [str(file)], str(spool), mapping=mapping)
    assert said in str(refused.value)
    assert not spool.exists()


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        ("gpu_total: total", "gpu_totl: total", ":6: 'gpu_totl' is not a column of pools; did you mean 'gpu_total'?"),
        ("unit: percent", "unit: MiB", ":9: 'MiB' is bytes and cannot become 'ratio'"),
        ("unit: percent", "unit: procent", ":9: unknown unit 'procent'; did you mean 'percent'?"),
        ("pool: name", "pool: {column: name, unit: s}", ":5: pool is string, which has no unit"),
        ("pool: name", "pool: {column: name, format: epoch_s}", ":5: pool is string, not a time"),
        ("gpu_total: total", "gpu_total: {value: many}", ":6: 'many' is not of type float64"),
        ("gpu_total: total", "gpu_total: {column: total, value: 1}", ":6: has several sources of values"),
        (
            "gpu_total: total",
            "gpu_total: {colum: total}",
            ":6: unknown key 'colum' in columns.gpu_total; did you mean 'column'?",
        ),
        ("table: pools", "table: pool", ":2: unknown table 'pool'; did you mean 'pools'?"),
        ("table: pools", "table: rejects", ":2: 'rejects' is not a table of recorded rows"),
        ("  pool: name\n", "", ":4: pools needs a pool"),
        ("time: {column: when}", "time: {column: when, zone: Mars/Base}", ":3: unknown zone 'Mars/Base'"),
        ("time: {column: when}", "tim: {column: when}", ":3: unknown key 'tim' in the file; did you mean 'time'?"),
        ("table: pools", "table: pools\nfilters: [{column: name}]", ":3: a filter needs a column"),
        ("table: pools", "table: [", "not usable YAML"),
        ("table: pools", "table: pools\ntable: pools", ":3: not usable YAML (key 'table' appears twice)"),
        ("  pool: name", "  pool: name\n  ts: when", ":6: 'ts' is filled by the import"),
    ],
)
def test_mappings_that_cannot_be(tmp_path, line, instead, said):
    """What is wrong with a mapping is told with its file and line, and what was meant."""
    assert line in MAPPING
    path = written(tmp_path / "m.yaml", MAPPING.replace(line, instead))
    with pytest.raises(MappingError) as refused:
        load_mapping(str(path))
    messages = [str(error) for error in (refused.value, *refused.value.others)]
    assert any(said in message for message in messages)
    assert all(message.startswith(str(path)) for message in messages)


def test_all_that_is_wrong_with_a_mapping_is_told_at_once(tmp_path):
    """First what its form is, then what its parts say of the table and of each other; each fault with its line."""
    text = MAPPING.replace("time: {column: when}", "time: {colum: when}").replace("gpu_total: total", "gpu_total: [a]")
    assert faults(tmp_path, text.replace("pool: name", "pool: {json: a}")) == [
        "3: unknown key 'colum' in time; did you mean 'column'?",
        "5: columns.pool.json must be a list, not text",
        "6: columns.gpu_total.column must be text or a number or true or false, not a list",
    ]
    text = MAPPING.replace("pool: name", "pol: name").replace(
        "gpu_total: total", "gpu_total: {column: total, unit: MiB}"
    )
    assert [line.partition(";")[0] for line in faults(tmp_path, text + "filters: [{column: name}]\n")] == [
        "4: pools needs a pool",
        "5: 'pol' is not a column of pools",
        "6: 'MiB' is bytes and cannot become '{gpu}'",
        "11: a filter needs a column and a condition",
    ]


def faults(folder, text):
    """Return what is wrong with a mapping, without the name of its file."""
    path = written(folder / "m.yaml", text)
    with pytest.raises(MappingError) as refused:
        load_mapping(str(path))
    return [str(error).removeprefix(f"{path}:") for error in (refused.value, *refused.value.others)]


def test_filters_and_ranks(lake, spool, tmp_path):
    """Only rows that pass all filters are imported; the rank's column says whose each is."""
    mapping = written(
        tmp_path / "s.yaml",
        "table: steps\ntime: {column: t, format: epoch_ms}\nrank: w\n"
        "columns: {step: n, step_time_s: {column: d, unit: ms}}\n"
        "filters: [{column: kind, in: [a, b]}, {column: n, above: 0, below: 9}, {column: kind, not_in: [b]}]\n",
    )
    rows = [
        "5,1,a,1700000000000,2",
        "5,0,a,1700000000000,2",
        "5,1,b,1700000000000,2",
        "7,8,a,1700000000001,3.5",
        "-1,8,a,1,1",
    ]
    file = written(tmp_path / "j.csv", "w,n,kind,t,d\n" + "\n".join(rows))
    done = imported(lake, spool, "table", file, mapping=str(mapping))
    assert done.refused == {"rank: missing": 1}
    assert ask(lake, "SELECT rank, step, step_time_s s FROM steps ORDER BY rank") == [
        {"rank": 5, "step": 1, "s": pytest.approx(0.002)},
        {"rank": 7, "step": 8, "s": pytest.approx(0.0035)},
    ]


MELT = """
table: pools
time: {column: day}
melt: {except: [day, total], name: queue, value: gpus}
columns:
  pool: queue
  gpu_total: gpus
"""


def test_columns_side_by_side_become_rows(lake, spool, tmp_path):
    """Each column but those that stay is a row a line; what does not convert is refused with its line."""
    mapping = str(written(tmp_path / "m.yaml", MELT))
    file = written(tmp_path / "wide.csv", "day,a,b,total\n2020-05-01,8,16,24\n2020-05-02,4,many,4\n")
    done = imported(lake, spool, "table", file, mapping=mapping)
    assert (done.rows["pools"], sum(done.refused.values())) == (3, 1)
    found = ask(lake, "SELECT date, pool, gpu_total FROM pools ORDER BY date, pool")
    assert [(row["date"].day, row["pool"], row["gpu_total"]) for row in found] == [
        (1, "a", 8),
        (1, "b", 16),
        (2, "a", 4),
    ]
    (refused,) = rejects(lake)
    assert all(word in refused["row"] for word in ("2020-05-02", "queue", "many"))


@pytest.mark.parametrize(
    ("melt", "told"),
    [("{name: queue}", "melt lacks the key 'value'"), ("{nam: queue}", "unknown key 'nam' in melt"),
     ("{except: [dy], name: queue, value: gpus}", "no column 'dy'")],
)  # fmt: skip
def test_a_melt_that_cannot_be_is_refused(spool, tmp_path, melt, told):
    """A melt without its names, and one that keeps a column that is not there, are refused with their line."""
    mapping = MELT.replace("{except: [day, total], name: queue, value: gpus}", melt)
    file = written(tmp_path / "wide.csv", "day,a,b,total\n2020-05-01,8,16,24\n")
    with pytest.raises(MappingError) as refused:
        import_files("table", [str(file)], str(spool), mapping=str(written(tmp_path / "m.yaml", mapping)))
    errors = [refused.value, *refused.value.others]
    assert any(told in error.what for error in errors)
    assert {error.where.rpartition("/")[2] for error in errors} == {"m.yaml:4"}


def test_every_packaged_mapping_is_sound():
    """They can all be read."""
    names = ("helios", "helios-capacity", "straggler-trace", "worker-steps")
    assert [load_mapping(name).contract.table for name in names] == [
        "pools", "pools", "spans", "steps",
    ]  # fmt: skip
    with pytest.raises(MappingError, match="did you mean 'helios'"):
        load_mapping("helio")


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(lines=st.lists(st.one_of(st.just(b"2020-05-01,x,8,1,1,25,h"), st.binary(max_size=30)), max_size=12))
def test_any_bytes_are_rows_or_refused(tmp_path_factory, lines):
    """Whatever a file holds behind its header, import ends well, or says in one line what is wrong with the file."""
    place = tmp_path_factory.mktemp("any")
    lines = [line.replace(b"\n", b"").replace(b"\r", b"").replace(b'"', b"") for line in lines]
    mapping = written(place / "m.yaml", MAPPING)
    file = written(place / "vc.csv", HEADER.encode() + b"\n".join(lines) + b"\n")
    spool = place / "spool"
    done = imported(Lake.create(str(place / "lake")), spool, "table", file, mapping=str(mapping))
    counted = done.rows.get("pools", 0) + sum(done.refused.values())
    assert counted == sum(1 for line in lines if line)


MOMENTS = """
table: jobs
time: {column: at, format: epoch_ms}
columns:
  job_id: name
  state: {file: stem}
  elapsed_s: {column: took, unit: ms}
"""


def test_numbers_are_exact(lake, spool, tmp_path):
    """A time in ms is that ms, not what a float has nearest; 9 ms are 0.009 s. So it is of floats, to the µs."""
    stamps = [1_772_399_597_250 + 977 * n for n in range(200)]
    rows = "".join(f"{at},{n},{n}\n" for n, at in enumerate(stamps))
    file = written(tmp_path / "whole.csv", "at,name,took\n" + rows)
    imported(lake, spool, "table", file, mapping=str(written(tmp_path / "m.yaml", MOMENTS)))
    seconds = "".join(f"{at / 1000:.3f},{n},{n}\n" for n, at in enumerate(stamps))
    file = written(tmp_path / "parts.csv", "at,name,took\n" + seconds)
    in_seconds = str(written(tmp_path / "s.yaml", MOMENTS.replace("epoch_ms", "epoch_s")))
    imported(lake, spool, "table", file, mapping=in_seconds)
    for run in ("whole", "parts"):
        found = ask(lake, f"SELECT CAST(ts AS BIGINT) us, job_id, elapsed_s FROM jobs WHERE run = '{run}'")
        assert {int(row["job_id"]): row["us"] for row in found} == {n: at * 1000 for n, at in enumerate(stamps)}
        assert all(row["elapsed_s"] == int(row["job_id"]) / 1000 for row in found)


def test_files_that_differ_in_their_names_alone(lake, spool, tmp_path):
    """Where a column is the file's name, files of the same content are different rows."""
    files = [written(tmp_path / name, "at,name,took\n1772399597250,1,1\n") for name in ("a.csv", "b.csv")]
    mapping = str(written(tmp_path / "m.yaml", "run: r\n" + MOMENTS))
    for again in (0, 2):
        assert imported(lake, spool, "table", *files, mapping=mapping).again == again
        assert [row["state"] for row in ask(lake, "SELECT state FROM jobs ORDER BY state")] == ["a", "b"]


def test_parquet_of_pandas(spool, tmp_path, mapping):
    """Times in ns, as pandas writes them, lose what is below a µs; whole numbers beyond 2**63 are refused."""
    times = pa.array([1_772_323_200_123_456_789] * 2, pa.timestamp("ns"))
    of = {"when": times, "name": ["x", "y"], "total": ["1", "2"], "running": pa.array([1, 2**64 - 1], pa.uint64())}
    of |= {"length": [1, 1], "busy": [1.0, 1.0], "kind": ["h", "h"]}
    pq.write_table(pa.table(of), tmp_path / "p.parquet")
    done = import_files("table", [str(tmp_path / "p.parquet")], str(spool), mapping=mapping)
    assert (done.rows["pools"], done.refused) == (1, {"job_running: not an integer": 1})


def test_filters_decimals_and_lines(lake, spool, tmp_path):
    """YAML's true is a file's true; what filters leave out is counted; commas are decimal; lines are the file's."""
    text = 'table: pools\ndecimal: ","\ntime: {column: when}\ncolumns: {pool: name, gpu_total: total}\n'
    text += "filters:\n  - {column: ok, in: [true]}\n"
    rows = "2026-03-01;x;1,5;true\n2026-03-01;y;1,5;false\n2026-03-01;z\n2026-03-01;z;1.5;true\n"
    file = written(tmp_path / "f.csv", "when;name;total;ok\n" + rows)
    done = imported(lake, spool, "table", file, mapping=str(written(tmp_path / "f.yaml", text)))
    assert (done.rows["pools"], done.left_out, sum(done.refused.values())) == (1, 1, 2)
    assert ask(lake, "SELECT gpu_total FROM pools") == [{"gpu_total": 1.5}]
    lines = sorted(json.loads(json.loads(row["row"])["refused_row"])["line"] for row in rejects(lake))
    assert lines == [4, 5]


@pytest.mark.parametrize(
    ("time", "said"),
    [
        ("{column: when, unit: ms}", "m.yaml:2: the format iso has no unit"),
        ("{column: when, format: epoch_s, unit: ms}", "the format epoch_s implies the unit"),
        ("{column: when, format: epoch_s, zone: Asia/Shanghai}", "epoch_s counts in UTC"),
        ("{column: when, format: epoch}", "unknown time format 'epoch'; did you mean 'epoch_s'"),
        ("{column: when, origin: 2020-07-01}", "times from an origin have a unit"),
        ("{row: number}", "is not a time"),
        ('{value: "2026-13-01"}', "'2026-13-01' is not a time"),
        ("{column: when, missing: NA}", "time.missing must be a list, not text"),
        ("{column: when, unit: s, origin: 2020-07-01, scale: 1/0}", "scale and offset are numbers"),
    ],
)
def test_what_a_time_cannot_have(tmp_path, time, said):
    """What would be passed over is refused, with its line."""
    text = f"table: pools\ntime: {time}\ncolumns: {{pool: name}}\n"
    with pytest.raises(MappingError, match=said):
        load_mapping(str(written(tmp_path / "m.yaml", text)))


def test_history_of_many_dates_is_cut(lake, spool, tmp_path, mapping, monkeypatch):
    """No segment holds more dates than ingest takes from one: a long history comes in several, and all of it."""
    monkeypatch.setattr("ranklake.capture.importers.imported_rows.DATES_PER_SEGMENT", 3)
    lines = [f"2020-05-{1 + number % 8:02d} 00:01:00,x,{number},,1,25,h\n" for number in range(20)]
    file = written(tmp_path / "vc.csv", HEADER + "".join(lines))
    assert imported(lake.configured(ingest=Limits(dates=3)), spool, "table", file, mapping=mapping).rows["pools"] == 20
    assert ask(lake, """SELECT count(*) n FROM segments WHERE "table" = 'pools'""") == [{"n": 7}]


def rows_of(lake, spool, tmp_path, mapping, text, wanted):
    """Import a table and return an answer, row by row."""
    written(tmp_path / "t.csv", text)
    done = imported(lake, spool, "table", tmp_path / "t.csv", mapping=written(tmp_path / "t.yaml", mapping), run="r")
    return done, [tuple(row.values()) for row in ask(lake, wanted)]


STEPS = "table: steps\ntime: t\ncolumns: {step: n, step_time_s: took, loss: loss, lr: lr, memory_allocated_bytes: m}\n"


def test_what_is_not_finite_is_null_and_flagged(lake, spool, tmp_path):
    """A run that diverged keeps its rows, as recorded ones do; a number beyond 32 bits is infinite there, too."""
    text = (
        "t,n,took,loss,lr,m\n2026-01-01,1,1.5,2.5,1e-3,1\n2026-01-01,2,1.5,NaN,1e-3,nan\n2026-01-01,3,1.5,nan,-inf,1\n"
        "2026-01-01,4,1.5,1e39,Infinity,1\n2026-01-01,5,nan,1,1,1\n2026-01-01,6,1.5,nil,1,1\n"
    )
    wanted = "SELECT step, loss, lr IS NULL, non_finite FROM steps ORDER BY step"
    done, steps = rows_of(lake, spool, tmp_path, STEPS, text, wanted)
    assert steps == [
        (1, 2.5, False, None), (2, None, False, "loss:nan"), (3, None, True, "loss:nan,lr:-inf"),
        (4, None, True, "loss:+inf,lr:+inf"),
    ]  # fmt: skip
    assert done.refused == {"step_time_s: missing": 1, "loss: not a number": 1}


def test_scalars_that_are_not_finite(lake, spool, tmp_path):
    """A scalar says what its value was, whatever the file is."""
    mapping = "table: scalars\ntime: t\ncolumns: {metric: {value: m}, kind: {value: gauge}, value: v}\n"
    lines = '{"t": "2026-01-01", "v": NaN}\n{"t": "2026-01-01", "v": "-Infinity"}\n{"t": "2026-01-01", "v": 1}\n'
    wanted = "SELECT value, value_flag FROM scalars ORDER BY slot"
    assert rows_of(lake, spool, tmp_path, mapping, lines, wanted)[1] == [(None, "nan"), (None, "-inf"), (1.0, None)]


def test_values_with_units(lake, spool, tmp_path):
    """Numbers that bear a unit are in the column's; what says that it is not available is NULL; others are refused."""
    text = (
        "t, n, took, loss, lr, m\n2026-01-01, 1, 0:01:30, 97 %, [N/A], 4096 MiB\n"
        "2026-01-01, 2, 350 ms, 3%, N/A, 1.5GiB\n"
        "2026-01-01, 3, 1-00:00:01, 4, [Not Supported], 7\n2026-01-01, 4, 2 W, 1, 1, 1\n2026-01-01, 5, 1, 2 W, 1, 1\n"
        '2026-01-01, 6,"2 days, 0:00:01.5", 1, 1, 9 apples\n'
    )
    wanted = "SELECT step, step_time_s, loss, lr, memory_allocated_bytes FROM steps ORDER BY step"
    done, steps = rows_of(lake, spool, tmp_path, STEPS, text, wanted)
    assert steps == [
        (1, 90.0, 97.0, None, 2**32), (2, pytest.approx(0.35), 3.0, None, 3 << 29), (3, 86_401.0, 4.0, None, 7),
    ]  # fmt: skip
    assert done.refused == {
        "step_time_s: not a number": 1, "loss: not a number": 1,
        "memory_allocated_bytes: not an integer": 1,
    }  # fmt: skip


def test_fractions_of_what_is_counted(lake, spool, tmp_path):
    """A scale makes no whole GPUs of parts of one; measures are rounded to whole bytes."""
    mapping = (
        "table: jobs\ntime: t\ncolumns: {job_id: id, state: {value: completed}, submit_ts: t,\n"
        "  gpu_count: {column: milli, scale: 0.001}, memory_bytes: {column: mem, unit: MiB}}\n"
    )
    text = "t,id,milli,mem\n2026-01-01,a,460,1\n2026-01-01,b,2000,57.33\n2026-01-01,c,1500,1\n"
    wanted = "SELECT job_id, gpu_count, memory_bytes FROM jobs"
    done, jobs = rows_of(lake, spool, tmp_path, mapping, text, wanted)
    assert jobs == [("b", 2, round(57.33 * 2**20))]
    assert done.refused == {"gpu_count: not an integer": 2}


def test_padded_names(lake, spool, tmp_path):
    """Blanks around a name or in a padded column say nothing; elsewhere a text keeps them."""
    mapping = (
        "table: scalars\ntime: {column: epoch, format: epoch_s}\n"
        "columns: {metric: name, kind: {value: gauge}, value: '  loss', step: epoch}\n"
    )
    text = "   epoch, name,  loss\n       0, a b ,   1.5\n       1,c,2.5\n"
    wanted = "SELECT ts, metric, value, step FROM scalars ORDER BY step"
    _, rows = rows_of(lake, spool, tmp_path, mapping, text, wanted)
    assert [(str(ts)[:19], *rest) for ts, *rest in rows] == [
        ("2000-01-01 00:00:00", "a b", 1.5, 0), ("2000-01-01 00:00:01", "c", 2.5, 1),
    ]  # fmt: skip
    assert '"times":"of an unknown start, taken as 2000-01-01"' in ask(lake, "SELECT labels FROM runs")[0]["labels"]


def test_devices_of_nvidia_smi(lake, spool, tmp_path):
    """Its CSV becomes samples of devices: watts, ratios, hertz and bytes, from values with units."""
    mapping = (
        "table: gpu_samples\ntime: {column: timestamp, format: '%Y/%m/%d %H:%M:%S.%f'}\ncolumns: {host: {value: n0},"
        " source: {value: nvml}, device_index: index, device_name: name, power_watts: 'power.draw [W]',"
        " sm_clock_hz: 'clocks.current.sm [MHz]', gpu_utilization_ratio: 'utilization.gpu [%]',"
        " memory_used_bytes: 'memory.used [MiB]'}\n"
    )
    text = (
        "timestamp, index, power.draw [W], clocks.current.sm [MHz], utilization.gpu [%], memory.used [MiB], name\n"
        "2026/07/23 12:00:09.000, 0, 490.50 W, 990 MHz, 50 %, 4096 MiB, NVIDIA H100\n"
        "2026/07/23 12:00:11.000, 1, [N/A], [N/A], 0 %, 1 MiB, NVIDIA H100\n"
    )
    columns = "device_name, power_watts, sm_clock_hz, gpu_utilization_ratio, memory_used_bytes"
    wanted = f"SELECT {columns} FROM gpu_samples ORDER BY device_index"
    done, rows = rows_of(lake, spool, tmp_path, mapping, text, wanted)
    assert done.refused == {}
    assert rows == [("NVIDIA H100", 490.5, 990e6, 0.5, 2**32), ("NVIDIA H100", None, None, 0.0, 2**20)]
