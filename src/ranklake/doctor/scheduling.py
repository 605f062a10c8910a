"""Probes of Prefect: its server, workers of the deployments' pools, and results of the last runs."""

import base64
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from typing import Any, Final

from ranklake.doctor.examination import Finding, Patient, failed, not_known, ok, skipped, warning
from ranklake.doctor.versions import release_numbers
from ranklake.flows.serving.home import served_at
from ranklake.printable import counted
from ranklake.redaction.redact import redact_uri

_ASK_S: Final = 3.0
_BUSY_S: Final = 8.0
"""Time limit for a busy server; a server without an answer is reported to people."""
_REFUSED: Final = frozenset({401, 403})
_OURS: Final = {"deployments": {"tags": {"all_": ["ranklake"]}}}
_OVER: Final = ["COMPLETED", "FAILED", "CRASHED"]
_MOST_RUNS: Final = 200
"""Prefect's page size."""
_MOST_BYTES: Final = 1 << 24
_UNPOLLED: Final = "NOT_READY"


def api_url(patient: Patient) -> str:
    """Address of the server's API: from the environment, else from `ranklake up`; empty if there is none."""
    url = os.environ.get("PREFECT_API_URL", "").rstrip("/")
    if not url and (served := served_at(patient.home.expanduser())):
        url = f"{served}/api"
    return url


def server(patient: Patient) -> Iterator[Finding]:
    """Check that the Prefect server answers, and is not older than the installed client."""
    url = api_url(patient)
    if not url:
        message = f"no server: PREFECT_API_URL is not set, and 'ranklake up' does not serve {patient.home}"
        yield skipped(message, "name the folder of 'ranklake up' by --home")
        return
    shown = redact_uri(url)
    if not url.startswith(("http://", "https://")):
        yield failed(f"{shown} is not an HTTP address", "set PREFECT_API_URL to one such as http://host:4200/api")
        return
    try:
        _request_json(f"{url}/health")
        server_version = str(_request_json(f"{url}/admin/version"))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _REFUSED:
            yield failed(f"{shown} refuses the credentials", "fix PREFECT_API_AUTH_STRING or PREFECT_API_KEY")
        else:
            yield failed(f"{shown} answers with HTTP {error.code}", "fix PREFECT_API_URL: it ends in /api")
        return
    except (OSError, ValueError) as error:
        yield failed(f"{shown}: no Prefect server answers ({type(error).__name__})", "start it, or fix PREFECT_API_URL")
        return
    client_version = metadata.version("prefect")
    if not release_numbers(server_version):
        yield not_known(f"{shown} answers, and tells no version")
    elif release_numbers(server_version)[:2] < release_numbers(client_version)[:2]:
        message = f"{shown} is Prefect {server_version}, older than the {client_version} here"
        yield failed(message, f"upgrade the server to {client_version}")
    elif release_numbers(server_version)[:1] > release_numbers(client_version)[:1]:
        message = f"{shown} is Prefect {server_version}, and here is {client_version}"
        yield warning(message, "run the version that was tested on both")
    else:
        yield ok(f"{shown}: Prefect {server_version}")


@dataclass(frozen=True, slots=True)
class LastRun:
    """The latest finished run of a deployment.

    Attributes
    ----------
    deployment, name, id
        The deployment's name, and the run's name and id.
    ended
        When it ended; None if unknown.
    failure
        Why it failed or crashed; empty if it completed.
    """

    deployment: str
    name: str
    id: str
    ended: datetime | None
    failure: str


@dataclass(frozen=True, slots=True)
class Schedules:
    """State of ranklake's deployments on a Prefect server.

    Attributes
    ----------
    deployments
        Number of registered deployments.
    is_polled
        Whether a worker polls each of their pools, by the pool's name.
    last_runs
        Last finished run of each deployment, among the last 200 runs of all.
    """

    deployments: int
    is_polled: Mapping[str, bool]
    last_runs: Sequence[LastRun]


def schedules(url: str) -> Schedules:
    """Query a server for pools and last runs. Raises `OSError` and `ValueError`."""
    body = {**_OURS, "limit": _MOST_RUNS}
    try:
        deployments: Any = _request_json(f"{url}/deployments/filter", body, _BUSY_S)
    except TimeoutError:  # on a busy machine a server may be late once; a hanging one is late again
        deployments = _request_json(f"{url}/deployments/filter", body, _BUSY_S)
    is_polled = {}
    for name in sorted({str(each["work_pool_name"]) for each in deployments if each.get("work_pool_name")}):
        pool: Any = _request_json(f"{url}/work_pools/{urllib.parse.quote(name, safe='')}", within_s=_BUSY_S)
        is_polled[name] = pool.get("status") != _UNPOLLED
    names = {each["id"]: str(each["name"]) for each in deployments}
    return Schedules(len(deployments), is_polled, list(_last_runs(url, names)) if names else [])


def runs(patient: Patient) -> Iterator[Finding]:
    """Report deployments whose last run failed, and pools without a worker, where runs wait for ever."""
    url = api_url(patient)
    if not url:
        yield skipped("see prefect")
        return
    state = schedules(url)
    if not state.deployments:
        yield skipped("no deployment of ranklake is registered there", "'ranklake deploy --pool NAME' does it")
        return
    is_sound = True
    for name in (name for name, is_polled in state.is_polled.items() if not is_polled):
        is_sound = False
        yield failed(f"nobody polls the pool {name}: its runs wait", f"prefect worker start --pool '{name}'")
    for run in (run for run in state.last_runs if run.failure and not _is_doctor(run.deployment)):
        is_sound = False
        since = f", at {run.ended:%Y-%m-%d %H:%M} UTC" if run.ended else ""
        message = f"the last run of {run.deployment}, {run.name}, failed{since}: {run.failure}"
        yield failed(message, f"its log: prefect flow-run logs {run.id}")
    if is_sound:
        yield ok(f"{counted(state.deployments, 'deployment')}: the last run of none failed, and each pool is polled")


def _is_doctor(deployment: str) -> bool:
    """Whether a deployment is the doctor's own, whose failures must not be findings themselves."""
    return deployment.rpartition("-")[2] == "doctor"


def _last_runs(url: str, deployments: Mapping[str, str]) -> Iterator[LastRun]:
    """Yield the latest finished run of each deployment, among the last runs of all."""
    asked = {
        **_OURS,
        "flow_runs": {"state": {"type": {"any_": _OVER}}},
        "sort": "END_TIME_DESC",
        "limit": _MOST_RUNS,
    }
    seen = set()
    results: Any = _request_json(f"{url}/flow_runs/filter", asked, _BUSY_S)
    for run in results:
        if run["deployment_id"] not in deployments or run["deployment_id"] in seen:
            continue
        seen.add(run["deployment_id"])
        failure = ""
        if run["state_type"] != "COMPLETED":
            failure = " ".join(str((run.get("state") or {}).get("message") or run["state_type"].lower()).split())
        ended = datetime.fromisoformat(run["end_time"]) if run.get("end_time") else None
        yield LastRun(deployments[run["deployment_id"]], str(run["name"]), str(run["id"]), ended, failure)


def _request_json(url: str, body: Mapping[str, Any] | None = None, within_s: float = _ASK_S) -> object:
    """Return a server's answer, as JSON. Raises `OSError` and `ValueError`."""
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if key := os.environ.get("PREFECT_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    elif pair := os.environ.get("PREFECT_API_AUTH_STRING"):
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - its caller checked the scheme
    with urllib.request.urlopen(request, timeout=within_s) as answer:  # noqa: S310 - as above
        return json.loads(answer.read(_MOST_BYTES))
