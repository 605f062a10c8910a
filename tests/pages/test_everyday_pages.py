"""Everyday tasks on the pages of `ranklake ui`, click by click, as tests/bench/everyday.yaml counts them."""

from pathlib import Path

import pytest
import yaml
from opened import chromium
from sweep_lake import sweep_lake
from ui_client import ui_server

pytestmark = [pytest.mark.pages, pytest.mark.leaky("a browser's driver keeps its pipes")]
TASKS = {
    task["task"]: task
    for task in yaml.safe_load((Path(__file__).parents[1] / "bench" / "everyday.yaml").read_text())
    if "page" in task
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Give a page of a browser, and the address of a server that takes annotations."""
    folder = tmp_path_factory.mktemp("everyday")
    spool = {"RANKLAKE_SPOOL": str(folder / "spool")}
    with ui_server(sweep_lake(folder), "--write", environment=spool) as url, chromium() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(120_000)
        yield page, url


def do(page, step):
    """Make a click, a choice or a download, or fill a field and press Enter; return what it gives."""
    action, _, name = step.partition(" ")
    if action == "click":
        page.get_by_role("link", name=name, exact=True).or_(
            page.get_by_role("button", name=name, exact=True)
        ).first.click()
    elif action == "check":
        page.get_by_label(name, exact=True).check()
    elif action == "download":
        with page.expect_download() as download:
            page.get_by_role("link", name=name, exact=True).or_(
                page.get_by_role("button", name=name, exact=True)
            ).first.click()
        return download.value.suggested_filename
    else:
        assert action == "fill"
        label, _, value = name.partition(" = ")
        field = page.get_by_label(label, exact=True)
        field.fill(value)
        field.press("Enter")
    page.wait_for_load_state()
    return ""


@pytest.mark.parametrize("name", TASKS)
def test_a_task_takes_these_clicks(page, name):
    """From the first page; what the task asks for is then seen."""
    page, url = page
    page.goto(url)
    for step in TASKS[name]["page"]:
        told = do(page, step)
    shows = TASKS[name]["shows"]
    if told:
        assert told == shows
    else:
        page.get_by_text(shows).locator("visible=true").first.wait_for()
