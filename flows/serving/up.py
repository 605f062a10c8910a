"""``ranklake up``: starts a Prefect server and a worker, registers all deployments, and keeps both alive.

    up ──┬─▶ server    uvicorn, Prefect's API and UI, the scheduler      restarted when it ends
         ├─▶ warm      forks flow runs (`ranklake.flows.serving.warm`)   restarted; meanwhile runs start without it
         └─▶ worker ──▶ flow run ──▶ Dask workers                        restarted; its runs are marked Crashed
         every LOOK_S seconds: runs without a process are marked Crashed
         ──▶ /metrics, /healthz: of the last probe of the lake (`ranklake.flows.serving.health`)

All these processes end with their parent (`ranklake.flows.serving.leash`). The next run completes the work of one that
was killed, because the lake stays consistent.
"""

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectAlreadyExists, PrefectException
from prefect.workers.process import ProcessWorker

from ranklake.capture.node.endpoint import Endpoint, PortInUseError
from ranklake.config.settings import HealthSection
from ranklake.errors import RanklakeError
from ranklake.flows.deployments import deployments
from ranklake.flows.register import PAUSED, ForeignDeploymentError, NoLakeError, RegisterResult, register
from ranklake.flows.serving.child import LEASH, Child, kill_left_behind
from ranklake.flows.serving.environment import LEASES, MARK, for_server, for_worker, url_of
from ranklake.flows.serving.health import Health
from ranklake.flows.serving.runs import begun, collapse_overdue, end, free_limits, left_below, running_ids
from ranklake.flows.serving.warm import run_command, warm_command
from ranklake.flows.settings import FlowSettings

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

POOL: Final = "ranklake"
LOOK_S: Final = 10.0
_READY_POLL_S: Final = 0.2
_STOP_S: Final = 5.0
_TELL_S: Final = 10.0
_AWAY: Final = (httpx.HTTPError, PrefectException, OSError, RuntimeError)
"""Errors of a client while the server is unreachable or restarts."""
_LOST: Final = "its process is gone; the next run goes on where it stopped"
_STOPPED: Final = "ranklake up was stopped; the next run goes on where it stopped"
_DATABASE_AWAY: Final = "the server cannot reach its database; start it, or wait: runs go on by themselves afterwards"
_DATABASE_BACK: Final = "the server reaches its database again"
_REASONS: Final = {
    "address already in use": ("the port is taken", "name another by --port"),
    "database is locked": ("the database is locked by another process", "stop what uses it, and start again"),
    "Can't locate revision": ("the database was made by another version of Prefect", "name another --home"),
    "readonly database": ("the database cannot be written", "fix the permissions of the home, or name another --home"),
    "password authentication failed": ("the database refuses the password", "fix what --database names"),
    "does not exist": ("the database or its user does not exist", "create it, or fix what --database names"),
    "Connection refused": ("the database cannot be reached", "start it, or fix what --database names"),
    "No space left": ("the disk is full", "free some space, and start again"),
}


class UpError(RanklakeError):
    """``ranklake up`` cannot start. No process is left running."""


@dataclass(frozen=True, slots=True)
class MetricsPlace:
    """Address of ``/metrics`` and ``/healthz``.

    Attributes
    ----------
    host, port
        Address to listen at; port 0 disables them.
    is_asked_for
        Whether the user named the port: if it is taken, that is an error instead of a message.
    section
        Interval of the probes, and the limit of free disk space.
    """

    host: str
    port: int
    is_asked_for: bool
    section: HealthSection


@dataclass(frozen=True, slots=True)
class Plan:
    """Options of ``ranklake up``.

    Attributes
    ----------
    home, host, port, database
        Home folder, address and database of the server; see `ranklake.flows.serving.environment`.
    settings
        Parameters of all deployments.
    lake
        URI of the lake, as the flows open it.
    every_s
        Interval of the pipeline in seconds.
    metrics
        Address of ``/metrics`` and ``/healthz``.
    """

    home: Path
    host: str
    port: int
    database: str
    settings: FlowSettings
    lake: str
    every_s: int
    metrics: "MetricsPlace"

    @property
    def url(self) -> str:
        """Address of the server for processes on this machine."""
        return url_of(self.host, self.port)


def check_port(host: str, port: int) -> None:
    """Raise `UpError` if the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        hint = "name another by --port, or stop what listens there"
        raise UpError(f"cannot listen there ({error.strerror})", where=f"{host}:{port}", hint=hint) from error


def serve(plan: Plan, say: Callable[[str], None]) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. Raises `UpError` if the start fails."""
    kill_left_behind(MARK, str(plan.home))
    shutil.rmtree(plan.home / LEASES, ignore_errors=True)  # their holders are dead now
    check_port(plan.host, plan.port)
    asyncio.run(_Services(plan, say).run())


@dataclass(slots=True)
class _Services:
    plan: Plan
    say: Callable[[str], None]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ids: list[UUID] = field(default_factory=list)
    missing: set[UUID] = field(default_factory=set)

    async def run(self) -> None:
        began = time.monotonic()
        plan = self.plan
        server = Child("server", _server_command(plan), for_server(plan.url, plan.database), self.say)
        warm = Child("warm", warm_command(plan.home), for_worker(), self.say)
        worker = Child("worker", _worker_command(), for_worker(), self.say)
        health = Health({"server": server, "worker": worker}, plan.home, *self._look_options(), plan.metrics.section)
        with self._stopped_by_signals(server, warm, worker), self._metrics(health):
            try:
                await server.start()
                await warm.start()
                if not await self._ready(server):
                    return
                async with get_client() as client:
                    registered = await self._prepare(client)
                if self.stop.is_set():
                    return
                await worker.start()
                self._report_start(registered, time.monotonic() - began)
                await self._keep(health, server, warm, worker)
            finally:
                await self._end(server, warm, worker)

    async def _ready(self, server: Child) -> bool:
        """Wait until the server answers; return False if stopped before. Raises `UpError` if the server ends."""
        async with httpx.AsyncClient() as client:
            while server.alive and not self.stop.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get(f"{self.plan.url}/api/health")).status_code == httpx.codes.OK:
                        return True
                await asyncio.sleep(_READY_POLL_S)
        if self.stop.is_set():
            return False
        raise _end_reason(await server.wait_for_end(), list(server.last))

    async def _prepare(self, client: "PrefectClient") -> list[RegisterResult]:
        """Register all deployments, and clean up after an earlier process."""
        template = ProcessWorker.get_default_base_job_template()
        with contextlib.suppress(ObjectAlreadyExists):
            await client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))
        command = [*LEASH, MARK, *run_command(self.plan.home, "prefect.engine")]
        variables = {"command": shlex.join(command), "working_dir": str(Path.cwd())}
        plan = self.plan
        all_deployments = deployments(plan.every_s)
        try:
            registered = await register(client, all_deployments, plan.settings, POOL, variables, lake=plan.lake)
        except NoLakeError as error:
            raise UpError(error.what, where=error.where, hint=error.hint) from None
        except ForeignDeploymentError as error:
            hint = "a home serves one lake: name another by --home and --port, or the lake that it served before"
            raise UpError(error.what, where=error.where, hint=hint) from None
        self.ids = [item.id for item in registered if item.id is not None]
        await self._end_lost(client, immediately=True)
        await free_limits(client)
        dropped, waiting = await collapse_overdue(client, self.ids)
        if dropped:
            self.say(f"{dropped} runs came due while it was down; one run of each deployment makes up for them")
        for item in registered:
            if item.action.startswith(PAUSED):
                self.say(f"{item.name} is {item.action}; delete it, or register it anew")
            if item.schedule.startswith("every") and item.id not in waiting and item.id is not None:
                await client.create_flow_run_from_deployment(item.id)  # so that the first run starts now
        return [item for item in registered if not item.action.startswith(PAUSED)]

    async def _end_lost(self, client: "PrefectClient", *, immediately: bool = False) -> None:
        """Mark runs without a process Crashed: immediately, or if they had none at the last check either."""
        alive = running_ids(MARK, str(self.plan.home))
        lost = [run for run in await begun(client, self.ids) if str(run.id) not in alive]
        for run in lost:
            if immediately or run.id in self.missing:
                await end(client, run, StateType.CRASHED, _LOST)
                self.say(f"run {run.name} is marked Crashed: {_LOST}")
        cut_off = await left_below(client)
        for run in cut_off:
            if immediately or run.id in self.missing:
                await end(client, run, StateType.CRASHED, _LOST)
        self.missing = {run.id for run in (*lost, *cut_off)}

    def _look_options(self) -> tuple[list[str], dict[str, str]]:
        """Return options and environment of the probes, for the lake of the flows."""
        settings = self.plan.settings
        options = ["--lake", self.plan.lake]
        options += ["--spool", settings.spool] if settings.spool else []
        environment = dict(os.environ)
        if settings.config:
            environment["RANKLAKE_CONFIG"] = settings.config
        return options, environment

    @contextlib.contextmanager
    def _metrics(self, health: Health) -> Iterator[None]:
        """Serve metrics in the block. Raises `UpError` if a port that the user named is not available."""
        place = self.plan.metrics
        if not place.port:
            yield
            return
        with contextlib.ExitStack() as stack:
            try:
                port = stack.enter_context(Endpoint(place.port, health.answer, place.host)).port
            except PortInUseError as error:
                hint = "name another by --metrics-port, or 0 for none"
                if place.is_asked_for:
                    raise UpError(error.what, where=error.where, hint=hint) from error
                self.say(f"no metrics are served: {error.where} {error.what}; {hint}")
            else:
                self.say(f"metrics {url_of(place.host, port)}/metrics; health {url_of(place.host, port)}/healthz")
            yield

    async def _keep(self, health: Health, *children: Child) -> None:
        """Keep all children running until a signal stops them."""
        tasks = [
            *(asyncio.create_task(self._restart(child)) for child in children),
            asyncio.create_task(self._look()),
            *([asyncio.create_task(health.keep_looking())] if self.plan.metrics.port else []),
        ]
        stopped = asyncio.create_task(self.stop.wait())
        try:
            done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, stopped):
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)

    async def _restart(self, child: Child) -> None:
        while True:
            ending = await child.wait_for_end()
            child.kill_all()
            pause_s = child.next_pause_s()
            reason = _end_reason(ending, list(child.last))
            self.say(f"{child.name} {reason.what.removeprefix('the server ')}; starting it again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            child.restarts += 1
            await child.start()

    async def _look(self) -> None:
        """End lost runs at an interval; skip it while the server or its database is unreachable."""
        is_away = False
        while True:
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(*_AWAY):
                async with httpx.AsyncClient() as client:
                    answer = await client.get(f"{self.plan.url}/api/ready")
                if answer.is_success is is_away:
                    self.say(_DATABASE_BACK if is_away else _DATABASE_AWAY)
                    is_away = not is_away
                async with get_client() as client:
                    await self._end_lost(client)

    async def _end(self, server: Child, *others: Child) -> None:
        """Kill worker, runs and warm process; mark the runs Cancelled on the server; stop the server."""
        for child in others:
            await child.stop(0)
        kill_left_behind(MARK, str(self.plan.home), but=server.pids())
        if server.alive and self.ids:
            with contextlib.suppress(*_AWAY, TimeoutError):
                async with asyncio.timeout(_TELL_S), get_client() as client:
                    for run in await begun(client, self.ids):
                        await end(client, run, StateType.CANCELLED, _STOPPED)
                        self.say(f"run {run.name} is cancelled: {_STOPPED}")
        await server.stop(_STOP_S)

    def _report_start(self, registered: list[RegisterResult], took_s: float) -> None:
        width = max(len(item.name) for item in registered)
        self.say(f"ranklake up: {self.plan.lake}")
        for item in registered:
            self.say(f"  {item.name:<{width}}  {item.schedule}")
        self.say(f"home {self.plan.home}; UI {self.plan.url}")
        self.say(f"ready after {took_s:.0f} s; Ctrl-C stops it")

    @contextlib.contextmanager
    def _stopped_by_signals(self, *children: Child) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            if self.stop.is_set():  # second signal: exit immediately
                for child in children:
                    child.kill_all()
                os._exit(130)
            self.say("stopping")
            self.stop.set()

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup: outlive the terminal
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, stop)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


def _server_command(plan: Plan) -> list[str]:
    app = ("--factory", "ranklake.flows.serving.server:create_app")
    place = ("--host", plan.host, "--port", str(plan.port))
    quick = (
        "--timeout-keep-alive",
        "5",
        "--timeout-graceful-shutdown",
        "3",
        "--no-access-log",
        "--log-level",
        "warning",
    )
    return [sys.executable, "-m", "uvicorn", *app, *place, *quick]


def _worker_command() -> list[str]:
    return [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", "up"]


def _end_reason(ending: str, last: list[str]) -> UpError:
    """Return the reason for the end of a child, from its last lines; a killed child has none."""
    if ending.startswith("killed"):
        return UpError(ending)
    for line in reversed(last):
        for pattern, (reason, hint) in _REASONS.items():
            if pattern in line:
                return UpError(f"the server {ending}: {reason}", hint=hint)
    last_line = f": {last[-1]}" if last else ""
    return UpError(f"{ending}{last_line}", hint="read its lines above")
