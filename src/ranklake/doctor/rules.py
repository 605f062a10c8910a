"""Probes of the operator's own rules: contracts, retention policies, roles, prices."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ranklake.context import Context
from ranklake.doctor.examination import Finding, Patient, failed, ok, skipped, warning
from ranklake.lake.contracts.capture_masks import load_capture_masks
from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.load import load_metrics
from ranklake.lake.contracts.overlay import Overlay
from ranklake.lake.migrations.registry import load_own
from ranklake.lake.migrations.steps.step import MigrationError
from ranklake.lake.query.admission import pseudonyms_for
from ranklake.lake.query.role_file import load_roles
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.rollups.own import faults
from ranklake.lake.rollups.prices import read_prices
from ranklake.lake.store.reachability import LakeError
from ranklake.printable import counted
from ranklake.retention.policies.policies import overdue_line
from ranklake.retention.roles.cases import UnknownTeam, broken_conditions, unknown_teams
from ranklake.segments.keys import read_keyring

if TYPE_CHECKING:
    from ranklake.errors import RanklakeError


def contracts(patient: Patient) -> Iterator[Finding]:
    """Check that contracts and metrics, including the operator's own, are consistent."""
    context = Context.of(patient.config)
    if context.overlay is not None and not context.overlay.is_dir():
        yield failed(f"{context.overlay} is not a folder", "fix overlay under [contracts], or make the folder")
        return
    if context.overlay is not None and not any(context.overlay.glob("*.y*ml")):
        yield warning(f"{context.overlay} holds no contract and no metrics", "put the .yaml files into that folder")
        return
    tables, metrics = context.contracts(), load_metrics(context.overlay)
    errors: list[RanklakeError] = list(faults(tables))
    try:
        load_own(Overlay.read(context.overlay)) if context.overlay is not None else None
    except MigrationError as error:
        errors.append(error)
    yield from (failed(f"{fault.where}: {fault.what}", fault.hint or "fix the query") for fault in errors)
    if errors:
        return
    if (fault := _refusal(context)) is not None:
        yield failed(f"{fault.where}: {fault.what}", fault.hint)
        return
    own = f", with those in {context.overlay}" if context.overlay else ""
    yield ok(f"{counted(len(tables), 'table')}, {counted(len(metrics), 'metric')}{own}")


def _refusal(context: Context) -> ContractError | None:
    """Return why the lake cannot be written with this overlay; None if it can, or if it is unreachable."""
    if context.overlay is None or not context.config.lake.uri:
        return None
    try:
        return context.open_lake().catalog.refusal()
    except LakeError:  # another check reports it
        return None


def policies(patient: Patient) -> Iterator[Finding]:
    """Check that the retention policies are valid, and report rules whose review is overdue."""
    result = Context.of(patient.config).policies()
    source = patient.config.retention.policies or "the packaged ones"
    overdue = result.overdue_rules(datetime.now(UTC).date())
    for rule in overdue:
        yield warning(overdue_line(rule), "look at the rule again, and write the next date")
    if not overdue:
        yield ok(f"{counted(len(result.rules), 'rule')}, {source}")


def roles(patient: Patient) -> Iterator[Finding]:
    """Check that each role of the file is valid, and that its keys exist."""
    file = patient.config.sql.roles
    if not file:
        yield skipped("no roles configured: who can read the bucket sees all", "name their file by roles under [sql]")
        return
    contracts = Context.of(patient.config).contracts()
    result = load_roles(Path(file), contracts)
    for role in result.values():
        try:
            pseudonyms_for(role, contracts.values(), patient.config.masking.key)
        except RoleError as error:
            yield failed(f"{file}: role {role.name}: {error.what}", error.hint or "mend [masking] key")
            return
    for role in result.values():
        for fault in broken_conditions(role, contracts):
            yield failed(f"{file}: {fault.line}", fault.hint)
    if patient.config.lake.uri:
        for team in _unknown_teams(Context.of(patient.config), result):
            yield warning(f"{file}: {team.line}", team.hint)
    yield ok(f"{file}: {', '.join(result) or 'none'}")


def _unknown_teams(context: Context, roles: Mapping[str, Role]) -> list[UnknownTeam]:
    try:
        return unknown_teams(context.open_lake(), roles.values())
    except LakeError:  # another check reports it
        return []


def masking(patient: Patient) -> Iterator[Finding]:
    """Check that the policy of masks at capture is valid, and that its key exists."""
    config = patient.config
    file = config.masking_policy
    if file is None:
        yield skipped("nothing is masked at capture", "name a policy under [masking]; see docs/settings.md")
        return
    masks = load_capture_masks(file, Context.of(config).contracts())
    if masks.hashed and not config.masking_key:
        yield failed(f"{masks.hashed} is to be hashed, and there is no key", "name a keyring by key under [masking]")
        return
    if masks.hashed:
        read_keyring(config.masking_key)
    yield ok(f"{file}: {counted(sum(map(len, masks.columns.values())), 'column')} masked at capture")


def prices(patient: Patient) -> Iterator[Finding]:
    """Check that the price table is valid."""
    file = patient.config.cost.prices
    if not file:
        yield skipped("no prices configured: costs are not known", "name a price table by prices under [cost]")
        return
    yield ok(f"{file}: {counted(len(read_prices(file)), 'price')}")
