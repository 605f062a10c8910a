"""Which files are meant, which runs they become, and what is told where nothing came of them."""

import json

import pytest
from importing import ask, imported, refused_as_another_run

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.mapping import MappingError
from ranklake.capture.importers.source import SourceError, sources
from ranklake.cli import run

INIT = ':::MLLOG {"time_ms": 1727896395561, "key": "init_start"}\n'
FACTS = "name,restart,device,devices,flops\na,0,H100,8,1e12\nb,1,H100,16,2e12\nno name,0,H100,8,3e12\n"
MAPPING = "table: {table}\n{run}attempt: restart\ntime: {{value: 2026-03-01T00:00:00Z}}\ncolumns: {columns}\n"
OF_RUNS = "{device_name: device, device_count: devices}"
OF_SCALARS = "{metric: {value: model/flops_per_step}, kind: {value: gauge}, value: flops}"


def folders(tmp_path, *names):
    """Write a log of its own into each of some folders."""
    for number, name in enumerate(names):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "result_0.txt").write_text(INIT * (number + 1))
    return tmp_path


def test_two_slashes_are_one(tmp_path):
    """A path that a shell's variable ended with a slash names the same files."""
    folders(tmp_path, "a")
    assert len(sources([f"{tmp_path}/a//result_*.txt"], lambda _: {})) == 1
    assert len(sources([f"{tmp_path}//a//result_0.txt", f"{tmp_path}/a/result_0.txt"], lambda _: {})) == 1


def test_files_of_several_folders_are_named_after_them(tmp_path):
    """What tells their folders apart stands in the runs' names, with a name given or without."""
    place = folders(tmp_path, "eos/gpt3", "dgx/gpt3", "dgx/lora")
    done = import_files("mlperf", [f"{place}/*/*/result_*.txt"], str(tmp_path / "spool"))
    assert [name.rsplit("-", 1)[0] for name in done.runs] == [
        "dgx-gpt3-result_0",
        "dgx-lora-result_0",
        "eos-gpt3-result_0",
    ]
    done = import_files("mlperf", [f"{place}/*/*/result_*.txt"], str(tmp_path / "spool"), run="v4")
    assert done.runs == ["v4-dgx-gpt3-result_0", "v4-dgx-lora-result_0", "v4-eos-gpt3-result_0"]


def test_a_file_keeps_its_run_whatever_is_beside_it(tmp_path):
    """Imported alone and with others, or the other way round, a file is the same run: nothing is stored twice."""
    place = folders(tmp_path, "a", "b")
    (alone,) = import_files("mlperf", [f"{place}/a/result_0.txt"], str(tmp_path / "spool")).runs
    both = import_files("mlperf", [f"{place}/*/result_0.txt"], str(tmp_path / "spool"))
    assert alone in both.runs
    assert both.again == 1
    again = import_files("mlperf", [f"{place}/b/result_0.txt"], str(tmp_path / "spool"))
    assert (again.again, again.runs) == (1, [name for name in both.runs if name != alone])


def test_two_logs_do_not_become_one_run_in_two_commands(tmp_path):
    """A run that has rows of one log takes no other: as runs of one command are kept apart, so are those of two."""
    folders(tmp_path, "a", "b")
    refused_as_another_run("mlperf", [tmp_path / name / "result_0.txt" for name in "ab"], tmp_path / "spool")


def test_one_file_of_facts_for_many_runs_and_tables(lake, spool, tmp_path):
    """Runs and attempts stand in columns; the same file goes into two tables; a row that names no run is refused."""
    (tmp_path / "facts.csv").write_text(FACTS)
    for table, columns in (("runs", OF_RUNS), ("scalars", OF_SCALARS)):
        mapping = tmp_path / f"{table}.yaml"
        mapping.write_text(MAPPING.format(table=table, columns=columns, run="run: {column: name}\n"))
        done = imported(lake, spool, "table", tmp_path / "facts.csv", mapping=str(mapping))
        assert done.runs == (["facts", "a", "b"])
        assert done.refused == {"run: not a run's name": 1}
    found = ask(lake, "SELECT run, attempt, device_count n FROM runs WHERE device_name IS NOT NULL ORDER BY run")
    assert found == [{"run": "a", "attempt": 0, "n": 8}, {"run": "b", "attempt": 1, "n": 16}]
    found = ask(lake, "SELECT run, attempt, value FROM scalars ORDER BY run")
    assert found == [{"run": "a", "attempt": 0, "value": 1e12}, {"run": "b", "attempt": 1, "value": 2e12}]
    with pytest.raises(SourceError, match="takes the run from a column"):
        imported(lake, spool, "table", tmp_path / "facts.csv", mapping=str(mapping), run="r")


def test_one_file_into_two_tables_of_one_run(lake, spool, tmp_path):
    """Facts of one run go from one file into `runs` and `scalars`; a mapping that changed is still refused."""
    (tmp_path / "facts.csv").write_text("device,flops\nH100,1e12\n")
    for table, columns in (("runs", "{device_name: device}"), ("scalars", OF_SCALARS)):
        mapping = tmp_path / f"{table}.yaml"
        mapping.write_text(f"table: {table}\nrun: r\ntime: {{value: 2026-03-01}}\ncolumns: {columns}\n")
        imported(lake, spool, "table", tmp_path / "facts.csv", mapping=str(mapping))
    assert len(ask(lake, "SELECT run FROM runs WHERE device_name = 'H100'")) == 1
    mapping.write_text(mapping.read_text() + "missing: [x]\n")
    with pytest.raises(SourceError, match="the mapping changed"):
        imported(lake, spool, "table", tmp_path / "facts.csv", mapping=str(mapping))


def test_a_run_that_is_no_name_says_how_to_take_it_from_a_column(tmp_path):
    """`run: a b` is told that a column may name it."""
    (tmp_path / "m.yaml").write_text("table: runs\nrun: a b\ntime: {value: 2026-03-01}\ncolumns: {}\n")
    with pytest.raises(MappingError, match=r"run: \{column: …\}"):
        import_files("table", ["x"], str(tmp_path / "spool"), mapping=str(tmp_path / "m.yaml"))


def test_imports_that_bring_nothing_say_so(tmp_path, capsys):
    """Where all rows are refused the command exits 1, with the first reasons and where they were met."""
    (tmp_path / "facts.csv").write_text("t,v\nx,1\n2026-03-01,y\n")
    mapping = tmp_path / "m.yaml"
    mapping.write_text(
        "table: scalars\ntime: {column: t}\ncolumns: {metric: {value: m}, kind: {value: gauge}, value: v}\n"
    )
    command = [
        "import",
        "table",
        str(tmp_path / "facts.csv"),
        "--mapping",
        str(mapping),
        "--spool",
        str(tmp_path / "s"),
    ]
    assert run(command) == 1
    said = capsys.readouterr().out
    assert "table: nothing of 1 file was converted; first reasons:\n  facts.csv:2: time: not a time\n" in said
    assert run([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["first_refused"][0] == "facts.csv:2: time: not a time"


JOBS = "JobID|State|Start|End\n{}|COMPLETED|2024-05-01T10:00:00|2024-05-01T10:01:30\n"


def test_tables_of_one_folder_are_runs_of_their_own(tmp_path):
    """`sacct` and `prometheus` files are called after themselves; only `--run` merges them, else that is refused."""
    spool = str(tmp_path / "spool")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "jobs.txt").write_text(JOBS.format(f"1{ord(name)}"))
    (tmp_path / "a" / "dcgm.txt").write_text("up 1\n")
    one, other, page = (str(tmp_path / path) for path in ("a/jobs.txt", "b/jobs.txt", "a/dcgm.txt"))
    assert import_files("sacct", [one], spool).runs == ["jobs"]
    assert import_files("prometheus", [page], spool).runs == ["dcgm"]
    with pytest.raises(SourceError, match=r"run jobs has rows of another run since .* with --run NAME"):
        import_files("sacct", [other], spool)
    again = import_files("sacct", [one, other], spool)
    assert (again.again, again.runs) == (1, ["jobs", "b-jobs"])
    assert import_files("sacct", [one, other], spool, run="both").runs == ["both"]


def test_a_file_that_brings_nothing_is_named(tmp_path, capsys):
    """Where one file of several brings nothing the command names it and exits 1; the others are imported."""
    (tmp_path / "good").write_text(':::MLLOG {"time_ms": 1727896395561, "key": "init_start"}\n')
    (tmp_path / "bad").write_text(":::MLLOG {\n")
    command = ["import", "mlperf", str(tmp_path / "good"), str(tmp_path / "bad"), "--spool", str(tmp_path / "s")]
    assert run(command) == 1
    said = capsys.readouterr().out
    assert "  nothing of bad was converted: bad:1: the MLLOG line is incomplete\n" in said
    assert "events                    1 rows" in said


def test_a_name_that_was_redacted_is_told(tmp_path, capsys):
    """A run whose file's name looks like a credential is named without it, and the command says so."""
    token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
    (tmp_path / token).write_text(':::MLLOG {"time_ms": 1727896395561, "key": "init_start"}\n')
    command = ["import", "mlperf", str(tmp_path / token), "--spool", str(tmp_path / "s")]
    assert run(command) == 0
    said = capsys.readouterr().out
    assert "looked like a credential; give --run NAME" in said
    assert token not in said
    assert run([*command, "--run", "plain"]) == 0
    assert "credential" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "JobID|JobName|Partition|Account|AllocCPUS|State|ExitCode\n1853+0|echo|c||1|COMPLETED|0:0\n",
            "Submit, Start, End",
        ),
        ("JobIDRaw|JobName|Start\n1|a|Unknown\n", "the header lacks State"),
        ("       JobID    JobName  Partition    Account  AllocCPUS      State ExitCode\n", "not separated by |"),
    ],
)
def test_sacct_without_the_columns_it_takes(tmp_path, text, what):
    """Columns by default have no time: the missing ones are named, and the command that gives them."""
    (tmp_path / "jobs.txt").write_text(text)
    with pytest.raises(SourceError) as error:
        import_files("sacct", [str(tmp_path / "jobs.txt")], str(tmp_path / "spool"))
    assert what in error.value.what
    assert "sacct --parsable2 --allusers --format=JobID," in str(error.value.hint)
