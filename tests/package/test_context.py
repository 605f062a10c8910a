"""The context: what the operator configured reaches every command and flow, from one place."""

import ast
from pathlib import Path

import pytest

from ranklake.config import Config, ConfigError, load_config
from ranklake.context import Context
from ranklake.flows.settings import FlowSettings

ROOT = Path(__file__).resolve().parents[2]
SECRET = "q8Zr3xKpW1vT6yLmN4cJ9sHd2fGb7aQe"
FILE = f"""
[lake]
uri = "LAKE"
[spool]
uri = "SPOOL"
prefixes = [{{prefix = "team-a", runs = ["a-*"]}}]
[dask]
workers = 3
[contracts]
overlay = "own"
[cost]
prices = "prices.csv"
[audit]
witness = "file:/witness"
[plans]
key = "file:/keys"
require_signed_plans = true
[ingest]
future_hours = 7
[capture]
encryption_key = "env:KEY"
[storage]
aws_secret_access_key = "{SECRET}"
"""


@pytest.fixture
def file(tmp_path):
    """Give a configuration file that sets one key of each section."""
    path = tmp_path / "ranklake.toml"
    path.write_text(FILE.replace("LAKE", str(tmp_path / "lake")).replace("SPOOL", str(tmp_path / "spool")))
    return path


def test_each_setting_reaches_the_lake_and_the_spool(file, tmp_path):
    """Whoever opens the lake by its context has keys, prices, trust, limits and writers; no command leaves one out."""
    context = Context.of(load_config(file))
    for lake in (context.create_lake(), context.open_lake()):
        assert (lake.config.cost.prices, lake.config.encryption_key) == ("prices.csv", "env:KEY")
        assert (lake.config.audit.witness, lake.config.plans.key) == ("file:/witness", "file:/keys")
        assert lake.config.plans.require_signed_plans
        assert lake.config.spools == (str(tmp_path / "spool"),)
        assert lake.config.ingest.future_hours == 7
        assert [one.prefix for one in lake.config.spool.writers.prefixes] == ["team-a"]
    assert context.spool().config == lake.config == context.lake_config
    assert context.overlay == Path("own")


def test_what_is_given_stands_in_place_of_what_is_configured(file, tmp_path):
    """Options win, empty ones change nothing; plans may read the spool that is configured and the one that is given."""
    context = Context.of(load_config(file), {"spool.uri": "s3://other", "cost.prices": "", "dask.workers": 0})
    assert (context.spool_uri, context.config.cost.prices, context.config.dask.workers) == (
        "s3://other",
        "prices.csv",
        3,
    )
    assert context.lake_config.spools == (str(tmp_path / "spool"), "s3://other")
    with pytest.raises(ConfigError, match="pass --lake URI"):
        Context.of(Config()).open_lake()


def test_flows_read_the_configuration_where_they_run(file, tmp_path, monkeypatch):
    """A flow's parameters name a file, whose settings then hold, and which variables override as for commands."""
    monkeypatch.setenv("RANKLAKE_PRICES", "others.csv")
    context = FlowSettings(str(tmp_path / "mine"), config=str(file)).context()
    assert (context.lake_uri, context.config.cost.prices) == (str(tmp_path / "mine"), "others.csv")
    assert context.config.storage == {"aws_secret_access_key": SECRET}
    assert FlowSettings("l", "s").context().config == Config().overridden({"lake.uri": "l", "spool.uri": "s"})


def test_no_secret_stands_in_what_is_shown_of_a_context(file):
    """Neither storage options nor a URI's credentials are in the repr of a context or a configuration."""
    context = Context.of(load_config(file), {"lake.uri": f"s3://key:{SECRET}@bucket/lake"})
    assert SECRET not in repr(context) + repr(load_config(file)) + str(context)


def test_commands_and_flows_open_nothing_by_themselves():
    """A lake, a spool or a cluster is made in the context alone, so that a new setting is passed in one place."""
    made = {"Spool", "on_demand", "workers"}
    for folder in ("src/ranklake/commands", "flows"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for call in (node.func for node in ast.walk(tree) if isinstance(node, ast.Call)):
                assert not (isinstance(call, ast.Name) and call.id in made), path
                assert not (isinstance(call, ast.Attribute) and ast.unparse(call).startswith("Lake.")), path
