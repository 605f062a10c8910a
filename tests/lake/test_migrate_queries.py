"""``ranklake migrate queries`` as somebody with files types it: a diff first, files then, and what is left to do."""

import json
import subprocess

import pytest
from changed_contracts import ChangedContracts

from ranklake.cli import run


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Return contracts of a later release: `steps` has `tokens` and `lr` under other names and units."""
    contracts = ChangedContracts(tmp_path / "contracts", monkeypatch)

    def change(facts):
        by_name = {one["name"]: one for one in facts["columns"]}
        by_name["tokens"].update(name="tokens_seen")
        by_name["lr"].update(name="lr_percent", unit="percent")

    contracts.label = contracts.migrate("steps", change, factor=100).stem
    yield contracts
    contracts.earlier()


@pytest.fixture
def ask(changed, capfd):
    """Run the command; return its exit code, what it printed and what it told."""

    def command(*words):
        code = run(["migrate", "queries", *map(str, words)])
        said = capfd.readouterr()
        return code, json.loads(said.out) if "--json" in words else said.out, said.err

    return command


def test_the_diff_is_what_write_writes(tmp_path, ask):
    """Nothing changes before --write; the diff applies with `patch`; a second run has nothing to do."""
    path = tmp_path / "q" / "a.sql"
    path.parent.mkdir()
    text = "-- tokens a step\r\nSELECT step, tokens\r\nFROM steps -- all\r\nWHERE lr > 0.1"
    path.write_bytes(text.encode())
    path.chmod(0o640)
    code, diff, _ = ask(path.parent)
    assert (code, path.read_bytes().decode()) == (0, text)
    assert "1 file: 1 to change, 0 with something left to do" in diff
    copy = tmp_path / "copy.sql"
    copy.write_bytes(path.read_bytes())
    subprocess.run(["patch", "--binary", copy], input=diff, text=True, check=True, capture_output=True)
    assert ask(path, "--write")[0] == 0
    wanted = text.replace(" tokens\r", " tokens_seen AS tokens\r").replace("lr >", "(lr_percent / 100) >")
    assert path.read_bytes().decode() == wanted == copy.read_bytes().decode()
    assert path.stat().st_mode & 0o777 == 0o640
    assert ask(path, "--write")[:2] == (0, "1 file: 0 written, 0 with something left to do\n")
    assert [one.name for one in path.parent.iterdir()] == ["a.sql"]


def test_lines_are_those_of_patch(tmp_path, ask):
    """Form feeds and separators of Unicode end no line of a diff, and a path that is given twice counts once."""
    path, copy = tmp_path / "a.sql", tmp_path / "copy.sql"
    text = "-- a\x0cb\u2028c\x85\nSELECT '\x1c', tokens\nFROM steps\n"
    path.write_text(text)
    copy.write_text(text)
    code, diff, _ = ask(path, tmp_path / ".." / tmp_path.name / "a.sql", path)
    assert (code, "1 file: 1 to change" in diff) == (0, True)
    subprocess.run(["patch", "--binary", copy], input=diff, text=True, check=True, capture_output=True)
    assert ask(path, path, "--write")[0] == 0
    assert path.read_text() == copy.read_text() == text.replace("tokens", "tokens_seen AS tokens")


def test_what_is_left_is_told_with_its_line(tmp_path, ask):
    """What a person has to look at has file, line and reason; the rest of the file is written; it exits 1."""
    path = tmp_path / "a.sql"
    path.write_text("SELECT tokens FROM steps;\n\nSELECT *\nFROM steps;\n")
    code, _, told = ask(path, "--write")
    assert code == 1
    assert f"{path}:4: SELECT * gives" in told
    assert path.read_text() == "SELECT tokens_seen AS tokens FROM steps;\n\nSELECT *\nFROM steps;\n"
    code, found, _ = ask(path, "--json")
    assert (code, found["told"][0]["findings"][0]["line"], found["told"][0]["diff"]) == (1, 4, "")


def test_files_that_nobody_can_read_are_named(tmp_path, ask):
    """Binary, in another encoding, a symbolic link, too large: named, passed over, as they were."""
    (tmp_path / "binary.sql").write_bytes(b"SELECT\0")
    (tmp_path / "latin.sql").write_bytes("SELECT tokens FROM steps -- é".encode("latin-1"))
    (tmp_path / "link.sql").symlink_to("plain.sql")
    (tmp_path / "plain.sql").write_bytes("\ufeffSELECT tokens FROM steps".encode())
    with (tmp_path / "large.sql").open("wb") as file:
        file.truncate(65 * 2**20)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "a.sql").write_text("SELECT tokens FROM steps")
    code, found, _ = ask(tmp_path, "--json", "--write")
    why = {one["path"].rsplit("/", 1)[1]: one["passed_over"] for one in found["told"]}
    assert code == 1
    assert why.pop("plain.sql") is None
    assert sorted(why) == ["binary.sql", "large.sql", "latin.sql", "link.sql"]
    assert all(why.values())
    assert (tmp_path / "plain.sql").read_bytes() == "\ufeffSELECT tokens_seen AS tokens FROM steps".encode()
    assert (tmp_path / "link.sql").is_symlink()


def test_what_is_not_there_is_refused(tmp_path, ask):
    """A dialect that sqlglot does not know, and a file that does not exist."""
    (tmp_path / "a.sql").write_text("SELECT tokens FROM steps")
    assert ask(tmp_path / "a.sql", "--dialect", "trine")[0] == 2
    assert ask(tmp_path / "b.sql")[0] == 2


@pytest.mark.slow
def test_a_file_that_somebody_changed_meanwhile_stays(tmp_path, ask, monkeypatch):
    """What was read must be what is there when it is written."""
    from ranklake.lake.migrations.queries import files

    path = tmp_path / "a.sql"
    path.write_text("SELECT tokens FROM steps")
    found = files.outcome

    def slow(*words):
        one = found(*words)
        path.write_text("SELECT 1")
        return one

    monkeypatch.setattr(files, "outcome", slow)
    assert ask(path, "--write")[0] == 2
    assert path.read_text() == "SELECT 1"
    assert not [one for one in tmp_path.iterdir() if one.suffix == ".tmp"]
