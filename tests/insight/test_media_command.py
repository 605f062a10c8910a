"""`ranklake media` and `ranklake show`: what a run showed, listed, and one of it as a file, as a role sees it."""

import base64
import json
import os

import pytest
from recorded_runs import PICTURE, SCRIPT, lake_of_runs, media_of
from rollup_inputs import NOON, append

from ranklake.cli import run
from ranklake.commands.writing import write_whole
from ranklake.errors import RanklakeError
from ranklake.insight.runs.asking import UnseenError, asking
from ranklake.insight.runs.media import MediumError, media_names, medium
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.query.roles import Role
from ranklake.lake.store.lake import Lake

TABLES = frozenset(load_contracts())
OPERATIONAL = frozenset({"operational"})


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Give a lake whose only rows are media, of two ranks at one step."""
    made = Lake.create(str(tmp_path_factory.mktemp("media") / "lake"))
    other = {"run": "alpha-1", "incarnation": 20, "rank": 1, "ts": NOON, "name": "loss", "kind": "text", "step": 9}
    append(made, "media", [*media_of("alpha-1"), {**other, "bytes": 2, "content": "of rank 1"}])
    append(made, "media", [{**other, "run": "odd", "name": "x", "kind": "image", "bytes": 2, "content": "<svg>"}])
    return made


def test_the_latest_of_a_name_or_that_of_a_step_or_rank(bare):
    """With how many others answer to it, and its bytes as they were given."""
    ask = asking(bare)
    found = medium(ask, "alpha-1", "loss")
    assert (found.raw, found.step, found.others) == (b"at 3", 9, 4)
    assert medium(ask, "alpha-1", "loss", 7).raw == b"at 1"
    assert medium(ask, "alpha-1", "loss", 9, 1).raw == b"of rank 1"
    assert medium(ask, "alpha-1", "face").raw == base64.b64decode(PICTURE)
    assert json.loads(medium(ask, "alpha-1", "people").raw)["rows"][0][0] == "lovelace@example.org"
    told = {
        (row["name"], row["kind"]): (row["n"], row["first_step"], row["last_step"])
        for row in media_names(ask, "alpha-1").rows
    }
    assert told["loss", "text"] == (5, 6, 9)
    assert len(told) == 7


def test_a_medium_that_is_not_to_be_had(bare):
    """The reason, in a line: no such name, step or run, no base64, and what a role does not see."""
    ask = asking(bare)
    with pytest.raises(MediumError, match="did you mean 'confusion'"):
        medium(ask, "alpha-1", "confusoin")
    with pytest.raises(MediumError, match=r"none of step 5 and rank 1; it has steps 6, 7, 8, 9"):
        medium(ask, "alpha-1", "loss", 5, 1)
    with pytest.raises(MediumError, match=r"record with run\.media"):
        medium(ask, "nobody", "loss")
    with pytest.raises(MediumError, match="no base64"):
        medium(ask, "odd", "x")
    role = asking(bare, Role("r", OPERATIONAL, TABLES))
    with pytest.raises(MediumError, match="role r does not see"):
        medium(role, "alpha-1", "face")
    nullified = asking(bare, Role("r", OPERATIONAL, TABLES, masked=frozenset({"personal"})))
    with pytest.raises(MediumError, match="personal_image as nullify"):
        medium(nullified, "alpha-1", "face")
    assert "lovelace" not in medium(nullified, "alpha-1", "people").raw.decode()
    with pytest.raises(UnseenError):
        medium(asking(bare, Role("r", OPERATIONAL, frozenset({"runs"}))), "alpha-1", "loss")


def test_what_is_no_file_stays_what_it_is(tmp_path):
    """A pipe, and so a device, takes the bytes; a link stays one; a circle of links is told in one line."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(tmp_path / "pipe", b"shown")
        assert os.read(reader, 9) == b"shown"
    finally:
        os.close(reader)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", b"written")
    assert (tmp_path / "file").read_bytes() == b"written"
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(RanklakeError, match="circle: cannot be written"):
        write_whole(tmp_path / "circle", b"")
    assert (tmp_path / "pipe").is_fifo()
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "link", "file", "circle"}


@pytest.mark.slow
def test_at_the_prompt(tmp_path, capsys, monkeypatch):
    """Listed, printed and written; a name in a text forges no line of the terminal."""
    monkeypatch.setenv("COLUMNS", "120")  # a narrower one leaves columns out
    made = lake_of_runs(tmp_path)
    append(made, "media", media_of("alpha-1"))
    where = ["--lake", made.uri]
    assert run(["media", "alpha-1", *where]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["name", "kind", "times", "first", "step", "last", "step", "bytes"]
    assert [line.split()[0] for line in said[1:]][-1] == "samples"
    assert run(["media", "alpha-1", "loss", *where]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("at 3\n", "the latest; 3 others of that name: --step and --rank choose\n")
    place = tmp_path / "face.png"
    assert run(["media", "alpha-1", "face", "-o", str(place), "--json", *where]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["kind"], about["step"], about["file"]) == ("image", 3, str(place))
    assert place.read_bytes() == base64.b64decode(PICTURE)
    assert run(["media", "alpha-1", "confusion", "--step", "0", "-o", str(tmp_path / "c.json"), *where]) == 0
    assert capsys.readouterr().out.startswith("confusion matrix confusion, step 0, rank 0, ")
    assert json.loads((tmp_path / "c.json").read_text())["counts"] == [[3, 1], [0, 4]]
    for words, said in (
        (["alpha-1", "face"], "face is an image; name a file with -o"),
        (["alpha-1", "--step", "1"], "about one medium"),
        (["alpha-1", "loss", "--step", "99"], "none of step 99"),
        (["nobody"], "no run"),
        (["alpha-1", "loss", "-o", str(tmp_path / "no" / "x")], str(tmp_path / "no" / "x")),
    ):
        assert run(["media", *words, *where]) == 2
        told = capsys.readouterr()
        assert said in told.err
        assert told.out == ""
    assert run(["media", "alpha-2", *where]) == 0
    assert capsys.readouterr().out == "none recorded\n"
    assert run(["show", "alpha-1", *where]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("media")]
    assert len(shown) == 7
    assert shown[1].startswith("media       confusion matrix confusion, 1 time, step 0, ")
    assert run(["show", "alpha-1", "--json", *where]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in facts["media"]["rows"]} >= {"confusion", "loss", SCRIPT}
    assert facts["critical_path"]["reason"] == "no spans of its steps were recorded"
    drawing = base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>").decode()
    forged = {"run": "alpha-1", "ts": NOON, "name": "forged", "kind": "image", "media_type": "image/png"}
    append(made, "media", [{**forged, "bytes": 58, "content": drawing, "segment": 99}])
    assert run(["media", "alpha-1", "forged", "-o", str(tmp_path / "forged.png"), *where]) == 2
    assert "no image to be shown: neither PNG nor JPEG" in capsys.readouterr().err
    assert not (tmp_path / "forged.png").exists()
