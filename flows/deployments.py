"""All deployments: flows with schedule and parameters. ``ranklake up`` and ``ranklake deploy`` register them.

``docs/deploy/prefect.yaml`` is generated from them, for Prefect's own command (`ranklake.flows.deployment_file`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

OWNED: Final = "ranklake"
"""Tag of every deployment of ours. Deployments without it belong to others, whatever their name."""
PIPELINE_EVERY_S: Final = 300
ANCHOR: Final = datetime(2020, 1, 1, tzinfo=UTC)
"""Start of intervals."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of a deployment in UTC: an interval from 2020-01-01, or cron; never if neither is set."""

    every_s: int = 0
    cron: str = ""

    def __bool__(self) -> bool:
        return bool(self.every_s or self.cron)

    def __str__(self) -> str:
        if not self:
            return "by name only"
        return f"cron {self.cron} UTC" if self.cron else f"every {_period(self.every_s)}"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A flow with its schedule and its parameters besides ``settings``, which name the lake (`FlowSettings`).

    One run of a deployment is active at a time. Runs that become due meanwhile wait. The first one that starts does the
    work of all waiting runs, and deletes them (`ranklake.flows.one_driver`).

    Attributes
    ----------
    name
        Name of the deployment. Prefect adds the flow's name: ``ranklake-pipeline/pipeline``.
    entrypoint
        ``module:flow``, importable wherever ranklake is installed; no code is uploaded.
    description
        Description in the UI, in Markdown.
    schedule, parameters
        Schedule and parameters of its runs.
    """

    name: str
    entrypoint: str
    description: str
    schedule: Schedule = field(default_factory=Schedule)
    parameters: Mapping[str, object] = field(default_factory=dict)
    tags: tuple[str, ...] = (OWNED,)


def _period(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    if rest:
        return f"{seconds} s"
    return "minute" if minutes == 1 else f"{minutes} minutes"


_STAGES: Final = "ranklake.flows.stage_flows"
DEPLOYMENTS: Final = (
    Deployment(
        "pipeline",
        "ranklake.flows.stage_flows:pipeline_flow",
        "Bring new segments into the lake, check them, roll them up, check the rollups and renew the catalog, each a "
        "sub-flow of one run.",
        Schedule(every_s=PIPELINE_EVERY_S),
    ),
    Deployment(
        "catalog",
        f"{_STAGES}:catalog_flow",
        "Bring the catalog's tables up to date, also on a day that brings nothing new.",
        Schedule(cron="30 2 * * *"),
    ),
    Deployment(
        "upkeep",
        f"{_STAGES}:upkeep_flow",
        "Merge small files, shorten the logs and vacuum unreferenced files. Changes no row.",
        Schedule(cron="15 3 * * *"),
    ),
    Deployment(
        "deep-check",
        f"{_STAGES}:upkeep_flow",
        "Upkeep that first reads every data file and compares it with its digest.",
        Schedule(cron="15 4 * * 0"),
        {"with_scrub": True},
    ),
    Deployment(
        "check-history",
        f"{_STAGES}:check_flow",
        "Check all partitions anew, whether they changed or not: what a check asks of other tables may have changed.",
        Schedule(cron="45 4 * * 0"),
        {"again": True},
    ),
    Deployment(
        "retention-plan",
        f"{_STAGES}:retention_plan_flow",
        "Plan what is past its retention period. Removes nothing: its artifact names the command by which a person "
        "approves.",
        Schedule(cron="0 5 * * 1"),
    ),
    Deployment(
        "retention-apply",
        f"{_STAGES}:retention_apply_flow",
        "Apply a retention plan that the lake holds an approval of; its `plan` is the plan's name.",
    ),
    Deployment(
        "verify-artifacts",
        f"{_STAGES}:verify_artifacts_flow",
        "Hash recorded artifacts again, at most 1,000 and 200 GiB, those first that wait longest. Only what is in the "
        "lake, the spool or a place that `[artifacts] allow` names is opened.",
        Schedule(cron="30 1 * * *"),
    ),
    Deployment(
        "backup",
        f"{_STAGES}:backup_flow",
        "Back the lake up to the places of `[backup] to` whose newest backup is older than `every_h`; does nothing "
        "where none is configured.",
        Schedule(cron="20 * * * *"),
    ),
    Deployment(
        "drill",
        f"{_STAGES}:drill_flow",
        "Restore the newest backup of each place of `[backup] to` into a scratch folder, verify it, and keep RPO and "
        "RTO.",
        Schedule(cron="40 5 1 * *"),
    ),
    Deployment(
        "doctor",
        f"{_STAGES}:doctor_flow",
        "Look at everything that the pipeline depends on, as `ranklake doctor` does, where it runs. Fails where "
        "something is wrong; its artifact says what to do.",
        Schedule(cron="50 * * * *"),
    ),
    Deployment("ingest", f"{_STAGES}:ingest_flow", "Bring new segments into the lake, and nothing else."),
    Deployment("check", f"{_STAGES}:check_flow", "Run the contracts' checks on new partitions, and nothing else."),
    Deployment("rollup", f"{_STAGES}:rollup_flow", "Recompute the rollups whose inputs changed, and nothing else."),
    Deployment("playbooks", f"{_STAGES}:playbooks_flow", "Follow the playbooks, and nothing else."),
    Deployment(
        "alerts",
        f"{_STAGES}:alerts_flow",
        "Evaluate the rules of alerts and tell receivers, and nothing else: schedule it each minute where the pipeline "
        "runs less often.",
    ),
    Deployment("share", f"{_STAGES}:share_flow", "Bring copies of what roles see up to date, and nothing else."),
    Deployment("report", f"{_STAGES}:report_flow", "Write the report's pages that changed, and nothing else."),
)


def deployments(every_s: int = PIPELINE_EVERY_S, prefix: str = "") -> tuple[Deployment, ...]:
    """Return all deployments, with another interval of the pipeline and with a prefix to all names."""
    interval = Schedule(every_s=every_s)
    return tuple(
        replace(
            item,
            name=f"{prefix}-{item.name}" if prefix else item.name,
            schedule=interval if item.schedule.every_s else item.schedule,
        )
        for item in DEPLOYMENTS
    )
