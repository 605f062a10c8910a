"""Flows run once against a Prefect server of their own, and what its API then tells: for tests that ask it much.

python flow_scenario.py FOLDER LAKE SPOOL STORAGE ──▶ FOLDER/told.json
"""

import asyncio
import json
import logging
import os
import sys
import time
from contextlib import suppress
from datetime import date
from functools import partial
from pathlib import Path
from unittest import mock

from ranklake.config import load_config
from ranklake.flows.embedded import run_pipeline
from ranklake.flows.settings import FlowSettings
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.driver import Unit, carry_out, watched_by
from ranklake.lake.store.reachability import LakeUnreachableError, NotALakeError
from ranklake.lake.tables.read import read
from ranklake.retention.plans.apply import approve
from ranklake.retention.proposals.proposals import ProposalError

WAIT_S = 30
ASSETS = {"event": {"prefix": ["prefect.asset."]}}


async def _all(client, kind, **body):
    found, offset = [], 0
    while True:
        answer = await client._client.post(f"/{kind}/filter", json={**body, "limit": 200, "offset": offset})
        answer.raise_for_status()
        some = answer.json()
        found += some
        if len(some) < 200:
            return found
        offset += 200


async def _told():
    from prefect.client.orchestration import get_client

    async with get_client() as client:
        deadline = time.monotonic() + WAIT_S
        while True:  # the server books runs and events that it was sent a moment later
            runs = await _all(client, "task_runs")
            ended = all(one["state_type"] in {"COMPLETED", "FAILED", "CRASHED"} for one in runs)
            logs = [one for one in await _all(client, "logs") if not one["task_run_id"]]
            last = {one["flow_run_id"] for one in logs if one["message"].startswith("Finished in state")}
            if ended and len(last) == len(await _all(client, "flow_runs")):
                break
            assert time.monotonic() < deadline, [(one["name"], one["state_type"]) for one in runs]
            await asyncio.sleep(0.2)
        found = {kind: await _all(client, kind) for kind in ("flow_runs", "task_runs", "logs", "artifacts")}
        ids = [one["id"] for one in found["flow_runs"]]
        events = await client._client.post("/events/filter", json={"filter": ASSETS, "limit": 50})
        found["events"] = events.json()["events"]
        while more := events.json()["next_page"]:
            events = await client._client.get(more)
            found["events"] += events.json()["events"]
        graphs = [await client._client.get(f"/flow_runs/{one}/graph-v2") for one in ids]
        return {**found, "graphs": {one: graph.json() for one, graph in zip(ids, graphs, strict=True)}}


def _probe():
    """Run units that fail in their ways, by a watcher as a stage's flow has one."""
    from prefect import flow

    from ranklake.flows import stage_flows, watching
    from ranklake.flows.lineage import Lineage

    tries = iter((LakeUnreachableError("away"), None))

    def outage():
        logging.getLogger("ranklake.lake.probe").info("asked https://AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI@host/x")
        if error := next(tries):
            raise error

    def mistake():
        raise NotALakeError("no lake is there")

    def hang():
        for _ in range(1000):
            time.sleep(0.01)

    def units():
        with watched_by(watching.Watching(Lineage("s3://a:b@c/l k?x=1", "", {}))):
            carry_out(Unit("outage"), outage)
            for name, work in (("mistake", mistake), ("hang", hang)):
                watching.UNIT_S = 0.2 if name == "hang" else 60.0
                with suppress(NotALakeError, watching.UnitTimeoutError):
                    carry_out(Unit(name), work)
        watching.UNIT_S, watching.MOST_TASKS = 60.0, 3
        with watched_by(watching.Watching(Lineage("s3://a:b@c/l k?x=1", "", {}))):
            return [carry_out(Unit("many", dates=(date(2026, 3, day),)), partial(int, day)) for day in range(1, 6)]

    @flow(name="probe", flow_run_name="probe", persist_result=False)
    async def probe():
        stage_flows.attach()
        return await asyncio.to_thread(units)

    assert asyncio.run(probe()) == [1, 2, 3, 4, 5]


def main(folder, lake, spool, storage):
    """Run the flows, and write down what the server tells."""
    os.environ["PREFECT_LOGGING_LEVEL"] = "INFO"
    os.environ["PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED"] = "true"  # a server that ends with its run has none
    settings = FlowSettings(lake, spool, storage=storage, config=storage.removeprefix("file:"))
    with mock.patch("ranklake.flows.settings.load_config", wraps=load_config) as read_configuration:
        done = run_pipeline(settings, folder / "prefect")
    stored = settings.context().open_lake()
    rows = {table: read(stored.tables, contract(table)).num_rows for table in ("steps", "step_rollup")}
    from ranklake.flows.stage_flows import retention_apply_flow, retention_plan_flow

    plan = asyncio.run(retention_plan_flow(settings))["plan"]["retention_plan"]
    for _ in range(2):
        with suppress(ProposalError):  # nobody approved it
            asyncio.run(retention_apply_flow(settings, plan=plan, by="Otto Operator"))
        approve(settings.context().open_lake(), plan, "Ada Approver", "as agreed")
    asyncio.run(retention_plan_flow(settings))
    _probe()
    told = asyncio.run(_told())
    (folder / "told.json").write_text(
        json.dumps({"done": done, "rows": rows, "configurations": read_configuration.call_count, **told}, default=str)
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
