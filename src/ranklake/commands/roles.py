"""``ranklake roles``: the visibility of tables to roles, tests of it, and comparison of files of roles."""

import shutil
from pathlib import Path

import click

import ranklake.retention
from ranklake.commands.context import with_context
from ranklake.commands.options import Group, json_option, overriding
from ranklake.context import Context
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.contracts.model import Contract
from ranklake.lake.query.role_file import load_role, load_roles
from ranklake.lake.query.roles import RoleError
from ranklake.printable import counted
from ranklake.retention.roles.cases import broken_conditions, run_cases, unknown_teams
from ranklake.retention.roles.views import MORE, View, differences, view
from ranklake.retention.shares.place import STORES, ShareError, storage_policy
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, table_lines
from ranklake.views.tell import tell

_COLUMNS = tuple(map(TextColumn, ("column", "class", "seen", "why")))
PACKAGED = Path(ranklake.retention.__file__).parent / "roles.yaml"

roles_option = click.option(
    "--roles",
    "place",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File of roles; default: [sql] roles in ranklake.toml.",
)
optional_lake = overriding(
    "--lake", place="lake.uri", metavar="URI", help="Lake whose tables are meant; default: the configured one."
)


@click.group(cls=Group)
def roles() -> None:
    """Show what roles can see, test it, and compare files of roles."""


@roles.command()
@click.argument("role", metavar="ROLE")
@click.argument("table", metavar="TABLE")
@roles_option
@optional_lake
@json_option
@with_context
def explain(context: Context, role: str, table: str, place: Path | None, *, as_json: bool) -> None:
    """Explain which columns, masks and rows of a table a role sees, and why."""
    contracts = _contracts(context)
    file = _file(context, place)
    result = load_role(file, role, contracts)
    if table not in contracts:
        raise RanklakeError(f"unknown table {table!r}", where="TABLE", hint=did_you_mean(table, contracts))
    shown = view(result, contracts[table])
    for item in unknown_teams(context.open_lake(), [result]) if context.config.lake.uri else ():
        tell(f"warning: {item.line}: {item.hint}", err=True)
    if as_json:
        show_json(shown.plain())
    else:
        _show(shown, file)


@roles.command("test")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@roles_option
@optional_lake
@json_option
@with_context
def test(context: Context, files: tuple[Path, ...], place: Path | None, *, as_json: bool) -> int:
    """Run tests of roles: expected visible and hidden values. Exits 1 if one fails."""
    contracts = _contracts(context)
    known = load_roles(_file(context, place), contracts)
    for broken in (one for role in known.values() for one in broken_conditions(role, contracts)):
        raise RoleError(broken.line, where=str(_file(context, place)), hint=broken.hint)
    results = run_cases(files, known, contracts)
    failed = [one for one in results if not one.passed]
    if as_json:
        show_json([one.plain() for one in results])
    else:
        for item in failed:
            tell(item.line)
        tell(f"{counted(len(results), 'test')} of roles, {len(failed)} failed")
    return 1 if failed else 0


@roles.command()
@click.argument("old", metavar="OLD", type=click.Path(path_type=Path))
@click.argument("new", metavar="NEW", type=click.Path(path_type=Path))
@optional_lake
@json_option
@with_context
def diff(context: Context, old: Path, new: Path, *, as_json: bool) -> None:
    """List differences of roles between files OLD and NEW: + sees more, - sees less, ~ other rows or masks."""
    contracts = _contracts(context)
    results = differences(load_roles(old, contracts), load_roles(new, contracts), contracts)
    if as_json:
        show_json(results)
        return
    for item in results:
        tell(item.line)
    tell(f"{counted(len(results), 'difference')}, {sum(one.sees == MORE for one in results)} by which a role sees more")


@roles.command()
@click.argument("role", metavar="ROLE")
@overriding("--to", place="shares.to", metavar="URI", help="Place of shares; default: [shares] to in ranklake.toml.")
@click.option("--store", type=click.Choice(list(STORES)), required=True, help="Store whose policy language to write.")
@click.option("--principal", default="", metavar="NAME", help="Reader, in the store's syntax.")
@with_context
def policy(context: Context, role: str, store: str, principal: str) -> None:
    """Print the storage policy that permits reading a role's share and nothing else, as JSON."""
    if context.config.sql.roles:
        load_role(Path(context.config.sql.roles), role, _contracts(context))
    if not context.config.shares.to:
        hint = "pass --to URI, or write to under [shares] in ranklake.toml"
        raise ShareError("nobody says where shares are", where="--to", hint=hint)
    show_json(storage_policy(store, context.config.shares.to, role, principal))


@roles.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
def new(file: Path) -> None:
    """Write the packaged example roles into a new FILE, for you to edit."""
    if file.exists():
        raise click.UsageError(f"{file} is there already; name a new file")
    shutil.copyfile(PACKAGED, file)
    tell(f"{file}: name it by roles under [sql] in ranklake.toml")


def _contracts(context: Context) -> dict[str, Contract]:
    return dict(context.open_lake().contracts() if context.config.lake.uri else context.contracts())


def _file(context: Context, place: Path | None) -> Path:
    if place is None and not context.config.sql.roles:
        hint = "name their file by roles under [sql] in ranklake.toml, or by --roles"
        raise RoleError("no roles are defined", where="--roles", hint=hint)
    return place or Path(context.config.sql.roles)


def _show(view: View, file: Path) -> None:
    if not view.is_seen:
        tell(f"{view.role} does not see {view.table}: it is not in tables of {file}")
        return
    tell(f"{view.role} sees of {view.table} " + (" AND ".join(view.rows) or "all rows"))
    if view.until is not None:
        tell(f"until {view.until}, its last day")
    lines = [(one.column.name, one.column.class_, one.visibility, one.why) for one in view.sights]
    tell(*table_lines(_COLUMNS, lines))
