"""Images, tables, matrices and texts on a run's page: who gets which bytes, and that whatever a row holds is text."""

import base64
import json
import struct
from types import SimpleNamespace

import pytest
from page_read import Read
from recorded_runs import PICTURE, SCRIPT, lake_of_runs, media_of
from rollup_inputs import NOON, append

from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.media import FOR_ROLES, MOST_BYTES, media
from ranklake.insight.runs.report import runs_state
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.query.role_file import load_role
from ranklake.lake.store.lake import Lake
from ranklake.views.html.run_media import drawable_media
from ranklake.views.html.run_pages import href, section
from ranklake.views.html.run_tables import media_table
from ranklake.views.html.shell import render

CONTRACTS = load_contracts()


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake whose only rows are media."""
    made = Lake.create(str(tmp_path_factory.mktemp("media") / "lake"))
    append(made, "media", media_of("alpha-1"))
    append(made, "media", media_of("hidden"))
    return made


def told(lake, role=None, run="alpha-1"):
    """Return what is told of a run's media, drawn, by name; of a name the latest."""
    found = media(asking(lake, role), run, is_for_role=role is not None)
    by_name = {}
    for one in drawable_media(found):
        by_name.setdefault(one.name, one)
    return found, by_name


def role(tmp_path, **facts):
    """Return a role that sees media as facts say."""
    place = tmp_path / "roles.yaml"
    place.write_text(json.dumps({"roles": {"one": {"tables": ["media"], **facts}}}))
    return load_role(place, "one", CONTRACTS)


def test_without_a_role_only_what_is_about_nobody_is_told(lake):
    """Names and sizes of the others are listed; why their bytes are not there is said; of a name three are kept."""
    found, by_name = told(lake)
    assert set(by_name) == {"confusion", "plot", "samples", "loss"}
    assert found.withheld == FOR_ROLES
    assert [row["step"] for row in found.listed.rows if row["name"] == "loss"] == [9, 8, 7]
    assert {row["of_name"] for row in found.listed.rows if row["name"] == "loss"} == {4}
    assert by_name["loss"].text == ["at 3"]
    assert by_name["plot"].image == (f"data:image/png;base64,{PICTURE}", 8, 8)
    labels, cells = by_name["confusion"].matrix
    assert labels == ["cat", SCRIPT]
    assert cells == [[("3", 8), ("1", 2)], [("0", 0), ("4", 10)]]
    assert not found.captions


def test_a_role_gets_what_it_sees(lake, tmp_path):
    """Text under its mask, and no image of class personal unless it sees that class as it is."""
    found, by_name = told(lake, role(tmp_path, classes=["operational"]))
    assert set(by_name) == {"confusion", "plot", "samples", "loss"}
    assert found.withheld
    _, by_name = told(lake, role(tmp_path, classes=["operational"], masked=["personal"]))
    assert set(by_name) == {"confusion", "plot", "samples", "loss", "people", SCRIPT}
    assert "lovelace" not in repr(by_name)
    assert by_name["people"].table[1][1] == ["", "true"]
    found, by_name = told(lake, role(tmp_path, classes=["operational", "personal"]))
    assert set(by_name) == {"confusion", "plot", "samples", "loss", "people", SCRIPT, "face"}
    assert by_name["face"].caption == "by lovelace@example.org"
    assert not found.withheld
    assert told(lake, role(tmp_path, classes=["operational"], runs="run = 'alpha-1'"), "hidden")[1] == {}
    other = role(tmp_path, classes=["operational"], tables=["runs"])
    assert "does not see" in told(lake, other)[0].listed.reason


FORGED = {
    "no base64": ("image", "<svg onload=alert(1)>"),
    "no image": ("image", base64.b64encode(b"<svg onload=alert(1)>").decode()),
    "no json": ("table", "{"),
    "another json": ("table", "[1]"),
    "a number": ("confusion_matrix", "3"),
    "texts as counts": ("confusion_matrix", '{"labels": ["a"], "counts": [["<b>"]]}'),
    "nan": ("confusion_matrix", '{"labels": ["a"], "counts": [[NaN]]}'),
    "few labels": ("confusion_matrix", '{"labels": [], "counts": [[1]]}'),
    "vast": ("confusion_matrix", f'{{"labels": ["a", "b"], "counts": [[1{"0" * 400}, 0.5]]}}'),
    "deep": ("table", "[" * 100_000),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_is_not_what_it_says_is_told_in_words(tmp_path, name):
    """Whoever may write a segment may write anything into it."""
    made = Lake.create(str(tmp_path / "lake"))
    kind, text = FORGED[name]
    row = {"run": "r", "incarnation": 1, "ts": NOON, "name": "n", "kind": kind, "bytes": 5, "content": text}
    append(made, "media", [row])
    ((_, one),) = told(made, run="r")[1].items()
    assert one.unknown.startswith("Not drawn: ")
    assert (one.image, one.table, one.matrix, one.text) == (None,) * 4


def test_a_page_takes_only_so_much_of_them(tmp_path):
    """By what they take, not by what they say of themselves; markup counts as it is written."""
    made = Lake.create(str(tmp_path / "lake"))
    big = {"run": "r", "incarnation": 1, "ts": NOON, "kind": "text", "bytes": 1}
    texts = ["x" * (MOST_BYTES // 2), "<" * (MOST_BYTES // 6), "y" * (MOST_BYTES // 2)]
    append(made, "media", [{**big, "slot": n, "name": f"n{n}", "content": one} for n, one in enumerate(texts)])
    found, by_name = told(made, run="r")
    assert len(found.listed.rows) == 3
    assert set(by_name) == {"n0", "n2"}
    assert by_name["n0"].more == f"the first 4,000 of {MOST_BYTES // 2:,} characters"


def test_a_page_shows_only_so_many_pixels(tmp_path):
    """A file of few bytes may claim millions, for which a browser would make room."""
    made = Lake.create(str(tmp_path / "lake"))
    raw = bytearray(base64.b64decode(PICTURE))
    raw[16:24] = struct.pack(">II", 4096, 4096)
    of = {"run": "r", "incarnation": 1, "ts": NOON, "kind": "image", "bytes": len(raw)}
    content = base64.b64encode(raw).decode()
    append(made, "media", [{**of, "slot": n, "name": f"n{n}", "content": content} for n in range(3)])
    _, by_name = told(made, run="r")
    assert [name for name, one in by_name.items() if one.image] == ["n0", "n1"]
    assert by_name["n2"].unknown == "Not drawn: the page is full."


def test_how_many_there_are_is_told(tmp_path):
    """Of more than a page lists."""
    made = Lake.create(str(tmp_path / "lake"))
    of = {"run": "r", "incarnation": 1, "ts": NOON, "kind": "text", "bytes": 1, "content": "x"}
    append(made, "media", [{**of, "slot": n, "name": f"n{n % 70}"} for n in range(1000)])
    found, _ = told(made, run="r")
    (table,) = media_table(SimpleNamespace(media=found))
    assert table.caption == "Media: of each name the latest 3, at most 60: 60 of 1,000"


@pytest.mark.slow
def test_the_page_shows_them_as_text(tmp_path):
    """No element comes of what a row holds; the image is of the page itself; the page is small."""
    made = lake_of_runs(tmp_path)
    append(made, "media", media_of("alpha-1"))
    matrix = json.dumps({"labels": list(map(str, range(100))), "counts": [[0] * 100] * 100})
    of = {"run": "alpha-1", "incarnation": 11, "ts": NOON, "kind": "confusion_matrix", "bytes": len(matrix)}
    append(made, "media", [{**of, "slot": n, "name": f"m{n}", "content": matrix} for n in range(40)])
    page = next(page for page in section(runs_state(made)).pages if page.path == href("alpha-1"))
    text = render(page).decode()
    found = Read(text)
    assert len(text) < 2_000_000
    assert [given["src"] for tag, given in found.elements if tag == "img"] == [f"data:image/png;base64,{PICTURE}"]
    assert "alert(1)</script>" not in text
    assert "level-8" in text
    assert "the page is full" in text
    assert "lovelace@example.org" not in text


def test_ones_own_pages_need_no_roles(tmp_path):
    """Where nobody has made roles, a page shows what may be about persons, too, as every query does."""
    made = lake_of_runs(tmp_path)
    append(made, "media", media_of("alpha-1"))
    state = runs_state(made, has_roles=False)
    page = next(page for page in section(state).pages if page.path == href("alpha-1"))
    assert "lovelace@example.org" in render(page).decode()
    assert state.marks != runs_state(made).marks
