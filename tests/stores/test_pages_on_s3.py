"""Every page and every packaged query on S3's protocol, as moto speaks it: the same as in a folder."""

import re

import pytest
from known_lake import known_lake
from lake_suite import spooled
from packaged_queries import ASKED, RECIPES, filled
from segments import step_rows
from stores import Store, moto_server, s3_storage, sent

from ranklake.cli import run
from ranklake.insight.catalog.refresh import refresh
from ranklake.lake.ingest.run import ingest
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.pipeline.report_sections import SECTIONS
from ranklake.quality.check import run_checks

pytestmark = pytest.mark.moto


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Give the URL of a moto server with one bucket."""
    with moto_server(tmp_path_factory.mktemp("moto")) as found:
        yield found


@pytest.fixture(scope="module")
def lakes(url, tmp_path_factory):
    """Give a lake in a folder that is catalogued, and the same in a bucket."""
    folder = tmp_path_factory.mktemp("known")
    lake = known_lake(folder)
    refresh(lake)
    place = Store("s3://bucket/known", s3_storage(url))
    sent(place, folder / "lake")
    return lake, Lake.open(place.uri, place.storage)


@pytest.fixture
def configured(place, url, tmp_path, monkeypatch):
    """Have commands use a lake and a report in the bucket."""
    options = "".join(f'{name} = "{value}"\n' for name, value in s3_storage(url).items())
    config = tmp_path / "ranklake.toml"
    config.write_text(f'[lake]\nuri = "{place.uri}/lake"\n[report]\nout = "{place.uri}/site"\n[storage]\n{options}')
    monkeypatch.setenv("RANKLAKE_CONFIG", str(config))
    return place


def answers(lake, text):
    """Return the rows of an answer, in an order of their own."""
    return sorted(map(repr, query(lake, text).to_pylist()))


@pytest.mark.parametrize("question", RECIPES)
def test_the_cookbook_is_answered_as_in_a_folder(lakes, question):
    """Each of its questions."""
    here, there = lakes
    assert answers(there, RECIPES[question]) == answers(here, RECIPES[question])


@pytest.mark.parametrize(("board", "title", "text"), ASKED, ids=[f"{board}: {title}" for board, title, _ in ASKED])
def test_dashboards_show_what_they_show_of_a_folder(lakes, board, title, text):
    """Each panel's query."""
    del board, title
    here, there = lakes
    assert answers(there, filled(text)) == answers(here, filled(text))


def test_a_condition_that_is_constant_is_read(lakes):
    """The optimizer turns some conditions into a bare true or false, which pyarrow's readers do not take."""
    here, there = lakes
    for condition in ("s.run IS NOT NULL", "s.run IS NULL", "s.date IS NOT NULL", "true", "1 = 2", "s.run = s.run"):
        text = f"SELECT s.run, r.git_commit FROM steps AS s LEFT JOIN runs AS r ON r.run = s.run WHERE {condition}"
        assert answers(there, text) == answers(here, text), condition


@pytest.mark.leaky("V8 keeps the files that it unpacks itself from")
def test_every_section_of_the_report_is_written(configured, tmp_path):
    """None is a page that says why there is none, and the command exits 0."""
    spool = spooled(configured, tmp_path, step_rows(20))
    lake = Lake.create(f"{configured.uri}/lake", configured.storage)
    ingest(lake, spool, InProcess())
    run_checks(lake)
    run_rollups(lake)
    refresh(lake)
    assert run(["report"]) == 0
    written = configured.contents()
    for section in SECTIONS:
        assert not re.search("cannot be (made|used)", written[f"site/{section}/index.html"].decode()), section
