"""The report's sections, and the functions that make their pages."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, NamedTuple

from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.insight.incidents.report import incidents_state
from ranklake.insight.overview.alerts import alerts_state
from ranklake.insight.overview.fleet import cluster_state, fleet_state
from ranklake.insight.overview.oncall import on_call
from ranklake.insight.overview.pipeline import catalog_state, pipeline_state, serving_state
from ranklake.insight.runs.report import runs_state
from ranklake.insight.slo.document import SloError
from ranklake.insight.slo.report import slo_state
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.masking.masks import MaskError
from ranklake.quality.report.gather import gather
from ranklake.quality.why.explain import samples
from ranklake.retention.policies.policies import PolicyError
from ranklake.retention.report.compliance import Compliance, compliance
from ranklake.retention.report.facts import governance
from ranklake.segments.envelope import MissingKeyError
from ranklake.views.html import (
    alerts_pages,
    catalog_pages,
    cluster_pages,
    executive_pages,
    governance_pages,
    incident_pages,
    oncall_pages,
    pipeline_pages,
    quality_pages,
    run_pages,
)
from ranklake.views.html.site import Section, failed_section


def _unusable(section: str, store: Store, what: str, error: RanklakeError) -> Section:
    """Return a section that shows only the reason why it cannot be made."""
    return failed_section(section, store.uri.rstrip("/").rpartition("/")[2], f"{what} cannot be used: {error.what}")


def _governance(context: Context, lake: Lake) -> Section:
    try:
        policies = context.policies(lake)
    except PolicyError as error:
        return _unusable("governance", lake.store, "The policies", error)
    return governance_pages.section(governance(lake, policies, datetime.now(UTC).date()))


def _slo(context: Context, lake: Lake) -> Section:
    try:
        return alerts_pages.slo_section(slo_state(lake, context.slos()))
    except SloError as error:
        return _unusable("slo", lake.store, "The files of objectives", error)


def compliance_of(context: Context, lake: Lake) -> Compliance:
    """Return the state of compliance under the configured policies and roles.

    Raises `ranklake.retention.policies.policies.PolicyError` and `ranklake.lake.query.roles.RoleError`.
    """
    has_roles = bool(context.config.sql.roles)
    roles = context.roles(lake.catalog) if has_roles else {}
    lacking = "" if has_roles else "No roles are defined: whoever may read the bucket sees everything"
    references = {
        "[capture] encryption_key": context.config.capture.encryption_key,
        "[masking] key": context.config.masking.key,
        "[plans] key": context.config.plans.key,
        "[shares] key": context.config.shares.key,
    }
    policies = context.policies(lake)
    try:
        proofs, no_proofs = context.mask_proofs(lake), ""
    except (MaskError, MissingKeyError) as error:
        proofs, no_proofs = [], error.what
    return compliance(
        lake, policies, roles, lacking, references, context.spool_place(), proofs=proofs, no_proofs=no_proofs
    )


def _compliance(context: Context, lake: Lake) -> Section:
    try:
        return governance_pages.compliance_section(compliance_of(context, lake))
    except (PolicyError, RoleError) as error:
        return _unusable("compliance", lake.store, "Policies or roles", error)


class ReportSection(NamedTuple):
    """A section of the report.

    Attributes
    ----------
    about
        Content of its pages, for the help of ``ranklake report``.
    make
        Makes it; gets the run that has a page in any case.
    make_for_role
        Makes it for a role, from the role's view of tables; None if it needs whole tables.
    links_to
        Sections that its pages link to, and that are written with it.
    """

    about: str
    make: Callable[[Context, Lake, str], Section]
    make_for_role: Callable[[Lake, Role, str], Section] | None = None
    links_to: tuple[str, ...] = ()


SECTIONS: Final[Mapping[str, ReportSection]] = MappingProxyType(
    {
        "oncall": ReportSection(
            "what needs a look, worst first: incidents, ranks, runs, checks, devices, the pipeline",
            lambda _, lake, __: oncall_pages.section(on_call(lake)),
            links_to=("runs", "incidents", "alerts"),
        ),
        "incidents": ReportSection(
            "what went wrong: a list, and one page of each with evidence, likely causes, what to do",
            lambda _, lake, __: incident_pages.section(incidents_state(lake)),
            lambda lake, role, _: incident_pages.section(incidents_state(lake, role)),
            links_to=("runs",),
        ),
        "alerts": ReportSection(
            "alerts that fire, those that ended, who was told of them",
            lambda _, lake, __: alerts_pages.section(alerts_state(lake)),
        ),
        "quality": ReportSection(
            "what fails checks, worst first, by table, check and partition",
            lambda _, lake, __: quality_pages.section(gather(lake, samples(lake))),
        ),
        "runs": ReportSection(
            "a list, and one page of each of the latest with curves, ranks, goodput and provenance",
            lambda context, lake, run: run_pages.section(
                runs_state(lake, run, has_roles=bool(context.config.sql.roles))
            ),
            lambda lake, role, run: run_pages.section(runs_state(lake, run, role)),
        ),
        "cluster": ReportSection(
            "nodes by hour, which stay low, utilization, queues, over the last 48 hours",
            lambda _, lake, __: cluster_pages.section(cluster_state(lake)),
            lambda lake, role, _: cluster_pages.section(cluster_state(lake, role)),
        ),
        "executive": ReportSection(
            "device time, utilization, MFU, goodput, outcomes and cost, week by week",
            lambda _, lake, __: executive_pages.section(fleet_state(lake)),
            lambda lake, role, _: executive_pages.section(fleet_state(lake, role)),
        ),
        "serving": ReportSection(
            "requests to served models: how many, how fast, how they ended, what has drifted",
            lambda _, lake, __: pipeline_pages.serving_section(serving_state(lake)),
            lambda lake, role, _: pipeline_pages.serving_section(serving_state(lake, role)),
        ),
        "slo": ReportSection(
            "service level objectives: what was attained, error budgets by date, and what used them up",
            lambda context, lake, _: _slo(context, lake),
        ),
        "pipeline": ReportSection(
            "stages, what waits for them, the last plans, checks that fail",
            lambda context, lake, _: pipeline_pages.section(pipeline_state(lake, context.config.health.overdue_s)),
        ),
        "catalog": ReportSection(
            "tables, columns with their classes, freshness, metrics, lineage as a drawing",
            lambda _, lake, __: catalog_pages.section(catalog_state(lake)),
        ),
        "governance": ReportSection(
            "policies against what is stored, what is due, waits, is held, was erased and went",
            lambda context, lake, _: _governance(context, lake),
        ),
        "compliance": ReportSection(
            "which role sees which classified column how, grants and their use, keys, the audit log, the store",
            lambda context, lake, _: _compliance(context, lake),
        ),
    }
)
"""Sections of the report by name, in the order of the navigation."""
