"""Pages as a role sees them: what it does not see is in no byte of the site, and what is left out is told."""

from contextlib import suppress

import pytest
import yaml
from hidden_run import PLANTED, READER, TABLES, lake_with_a_hidden_run

from ranklake.cli import run
from ranklake.commands.roles import PACKAGED
from ranklake.insight.overview.fleet import cluster_state, fleet_state
from ranklake.insight.runs.asking import UnseenError, masked_column
from ranklake.insight.runs.report import runs_state
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.query.role_file import load_role
from ranklake.lake.query.roles import Role
from ranklake.lake.query.scan import Opened
from ranklake.lake.store.store import Store
from ranklake.masking.masks import Mask
from ranklake.pipeline.report_sections import SECTIONS
from ranklake.views.html import site as publishing
from ranklake.views.html.shell import render
from ranklake.views.html.site import NotASiteError, Section, overview, publish


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of four runs, of which one is hidden."""
    return lake_with_a_hidden_run(tmp_path_factory.mktemp("seen"))


@pytest.fixture
def at(tmp_path, lake, monkeypatch):
    """Return what writes a site under a role of some text, and returns its folder."""
    monkeypatch.setattr(publishing, "library", lambda: b"")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKLAKE_LAKE", lake.uri)

    def written(*options, **roles):
        (tmp_path / "roles.yaml").write_text(yaml.safe_dump({"roles": roles}))
        (tmp_path / "ranklake.toml").write_text('[sql]\nroles = "roles.yaml"\n')
        return run(["report", *options])

    return written


def held(folder):
    """Return all that a site holds: names of files and their bytes, in small letters."""
    files = [one for one in folder.rglob("*") if one.is_file() and one.parent.name != "assets"]
    files.append(folder / "assets" / "site.js")
    return "\n".join(f"{one.relative_to(folder)}\n{one.read_text()}" for one in files).lower()


@pytest.mark.slow
def test_what_a_role_does_not_see_is_in_no_byte_of_its_site(tmp_path, at, capsys):
    """Neither in pages nor names of files nor what the search knows; the runs that it sees are there, with curves."""
    assert at("--role", "reader", reader=READER) == 0
    told = capsys.readouterr()
    assert "left out for role reader: quality: it tells of whole tables" in told.err
    text = held(tmp_path / "report-reader")
    assert [one for one in PLANTED if one in text] == []
    assert [one for one in ("alpha-1", "own/metric", "executive", "cluster") if one not in text] == []
    assert "at version" not in text  # versions count what others did


@pytest.mark.slow
def test_the_same_is_in_the_whole_site(tmp_path, at):
    """What was planted is on pages of those who may see all, but for names of people and hosts."""
    assert at("runs", "--out", "whole") == 0
    assert [one for one in PLANTED[:2] if one not in held(tmp_path / "whole")] == []


def site_of(place, role, *texts, said=""):
    """Write a site of a section a text, whose page says it, or something else."""
    made = []
    for name, text in zip(("runs", "cluster"), texts, strict=False):
        page = overview(f"{name}/{text}.html", text, "passed", said or text, said or text, lambda: {"lake": "l"})
        made.append(Section(name, name, "passed", text, page.path, (page,), ()))
    return publish(Store.at(str(place)), *made, role=role)


@pytest.mark.parametrize(("before", "after"), [("", "reader"), ("reader", ""), ("reader", "other")])
def test_a_site_is_for_one_role(tmp_path, monkeypatch, before, after):
    """Neither is a role's site written over the whole one, nor the other way, nor over another role's."""
    monkeypatch.setattr(publishing, "library", lambda: b"")
    site_of(tmp_path / "site", before, "one")
    text = held(tmp_path / "site")
    with pytest.raises(NotASiteError, match=r"the report as (role reader|whoever may see all) sees it"):
        site_of(tmp_path / "site", after, "one")
    assert held(tmp_path / "site") == text


def test_what_a_role_no_longer_sees_goes(tmp_path, monkeypatch):
    """Sections and pages that the last call did not make, those that a killed call left among them."""
    monkeypatch.setattr(publishing, "library", lambda: b"")
    site_of(tmp_path, "reader", "one", "two")
    (tmp_path / "runs" / "left.html").write_text("of a call that was killed")
    assert site_of(tmp_path, "reader", "one").written == 1  # the home page
    assert sorted(one.name for one in tmp_path.rglob("*.html")) == ["index.html", "one.html"]
    assert "two" not in held(tmp_path)
    assert site_of(tmp_path, "reader", "one").written == 0
    (tmp_path / "runs" / "one.html.0.tmp").write_text("of a call that was killed")
    assert site_of(tmp_path, "reader", "one").removed == 1
    assert site_of(tmp_path, "reader", "one").written == 0
    (tmp_path / "ranklake-site.json").write_text("{")
    with pytest.raises(NotASiteError, match="cannot be read"):
        site_of(tmp_path, "reader", "one")


def test_what_a_killed_call_wrote_of_a_wider_role_goes(tmp_path, monkeypatch):
    """The page is there, and the manifest tells the digest of the one before it: it is written again."""
    monkeypatch.setattr(publishing, "library", lambda: b"")
    site_of(tmp_path, "reader", "one")
    with monkeypatch.context() as killed:
        killed.setattr(publishing, "_finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            site_of(tmp_path, "reader", "one", said="wider")
    assert "wider" in held(tmp_path)
    site_of(tmp_path, "reader", "one")
    assert "wider" not in held(tmp_path)


def interrupted(*_):
    """End a call before its manifest."""
    raise KeyboardInterrupt


def test_masks_that_would_make_numbers_wrong_leave_them_out(lake):
    """A bucket of step times gives no mean; of hidden hosts no nodes are counted; a hash keeps runs apart."""
    masks = {("run_summary", "wall_ns"): "bucket:1000", ("gpu_hourly", "host"): "nullify", ("runs", "team"): "hash"}
    columns = {
        (table, load_contracts()[table].column(name).id): Mask.parse(said, "") for (table, name), said in masks.items()
    }
    role = Role("reader", frozenset({"operational"}), frozenset(TABLES), column_masks=columns)
    with pytest.raises(UnseenError, match=r"sees run_summary\.wall_ns as bucket:1000, and numbers"):
        runs_state(lake, "", role)
    with pytest.raises(UnseenError, match=r"sees gpu_hourly\.host as nullify"):
        cluster_state(lake, role)
    assert masked_column(role, "SELECT count(DISTINCT team) FROM runs", Opened(lake)) == ""
    assert masked_column(role, "SELECT * FROM run_summary", Opened(lake)) == "run_summary.wall_ns as bucket:1000"
    assert masked_column(role, "SELECT count(*) FROM run_summary", Opened(lake)) == ""


def test_the_packaged_executive_sees_the_whole_page(lake):
    """Nothing of it is unknown since the role lacks a table or a column."""
    role = load_role(PACKAGED, "executive", load_contracts())
    found = fleet_state(lake, role)
    parts = (found.week, found.weeks, found.days, *found.groups, *found.changes, found.forecast)
    assert found.through is not None
    assert [one.reason for one in parts if one.reason] == []


def test_a_role_that_sees_none_of_it_is_told_so(at, capsys):
    """One line, and no site; as for a role that nobody defined."""
    assert at("runs", "--role", "none", none={"classes": ["operational"], "tables": ["logs"]}) == 2
    assert "nothing to show to role none: runs: role none does not see it" in capsys.readouterr().err
    assert at("runs", "--role", "nonne", none={"classes": ["operational"], "tables": ["logs"]}) == 2
    assert "did you mean 'none'" in capsys.readouterr().err
    assert at("runs", "--role", "", none={"classes": ["operational"], "tables": ["logs"]}) == 2  # of an unset variable
    assert "unknown role ''" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "lacking"),
    [
        *(("runs", one) for one in ("step_rollup", "runs", "spans")),
        ("cluster", "cluster_hourly"),
        *(("executive", one) for one in ("mfu", "attempt_facts")),
    ],
)
def test_a_role_may_lack_any_table(lake, section, lacking):
    """Without one of those that pages read: a page without what it tells, or none, and no traceback."""
    role = Role("some", frozenset({"operational"}), frozenset(TABLES) - {lacking})
    with suppress(UnseenError):
        assert all(render(page) for page in SECTIONS[section].make_for_role(lake, role, "").pages[:2])


@pytest.mark.parametrize("section", [name for name, section in SECTIONS.items() if section.make_for_role])
def test_a_role_without_columns_sees_no_section(lake, section):
    """No page of unknowns alone."""
    with pytest.raises(UnseenError):
        SECTIONS[section].make_for_role(lake, Role("none", frozenset(), frozenset(TABLES)), "")
