"""The command line: imports a command's module on its call, and reports errors as one line and an exit code.

Exit codes: 0 success; 1 a problem was found (a failed check, a broken invariant); 2 bad usage or input; 130
interrupted. Only this module imports the heavy rooms late: ``ranklake --help`` must answer immediately, and the base
installation lacks the pipeline.
"""

import importlib
import keyword
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from click.shell_completion import CompletionItem

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.printable import printable
from ranklake.terminal import guarded, say_nothing

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended."""
SUMMARIES = {
    "demo": "Train a small model on two ranks, and run the whole pipeline on its record.",
    "calibrate": "Record an experiment whose truth is known, and compare telemetry with it.",
    "agent": "Upload what the ranks of this node record, and recover what dead ones left.",
    "import": "Import telemetry of other tools into the spool.",
    "ingest": "Bring new segments from the spool into the lake, exactly once.",
    "check": "Run the contracts' checks on new partitions.",
    "rollup": "Recompute the rollups whose inputs changed.",
    "upkeep": "Compact small files, shorten the logs and vacuum unreferenced files.",
    "migrate": "Bring stored tables to the contracts of this release, and back.",
    "pipeline": "Run ingest, check and rollup once, in order.",
    "up": "Serve all scheduled flows here: a local Prefect server with its UI, and a worker.",
    "deploy": "Register all scheduled flows on an existing Prefect server.",
    "status": "Prove that every recorded row is stored, quarantined, counted as a gap or in flight.",
    "metrics": "Print the pipeline's own health as metrics of Prometheus.",
    "config": "Show the configuration and where each key comes from, and check it.",
    "doctor": "Check everything that ranklake depends on, and say how to fix what is wrong.",
    "runs": "Find runs.",
    "watch": "Follow a run while it records on this node.",
    "show": "Show what is known of a run.",
    "incidents": "Show what went wrong, with evidence and likely causes, and mark it.",
    "tag": "Tag a run, name it, add notes and summary values.",
    "compare": "Compare runs: settings, surroundings, loss, pace.",
    "plot": "Draw curves of runs, on the terminal or as a picture.",
    "trace": "Write a step of a run for Perfetto: spans of all ranks.",
    "otlp": "Send a run to OpenTelemetry's collector: traces, metrics, logs.",
    "media": "List what a run showed, or write one image, table, matrix or text of it.",
    "sql": "Query the tables.",
    "share": "Keep copies of what a role sees under a prefix of its own.",
    "completion": "Print a script with which a shell completes commands and names.",
    "sharing": "Serve shares by the Delta Sharing protocol, and make profiles for who reads them.",
    "roles": "Show what roles see, test it, and compare files of roles.",
    "grant": "Ask that somebody gets a role until a time.",
    "grants": "Show who has which role, approve grants, and review them.",
    "revoke": "End a grant before its time.",
    "series": "Show a metric in one unit, whatever it was called and however it was recorded.",
    "report": "Write pages about the lake, as HTML that needs no server.",
    "ui": "Serve the pages of the report, live, to a browser on this machine.",
    "quality": "Show what checks hold back from rollups, release it after a fix; export suites.",
    "replay": "Rebuild dates of a table from segments that the spool still has.",
    "catalog": "Show tables, columns and metrics.",
    "metric": "Show the life of metrics, and deprecate, retire and sunset them.",
    "request-signal": "Request a metric that nobody records yet.",
    "retain": "Plan, approve and apply retention.",
    "erase": "Find where a person's data, or a run's, is; erase it, and prove that.",
    "approvals": "Show who may approve what, and how names are checked.",
    "disown": "Set aside a segment or stream with impossible counts, so that status balances.",
    "renumber": "Split a run that was recorded again under one name into attempts.",
    "playbooks": "Follow playbooks: what is told, checked, proposed or done about incidents.",
    "alerts": "Check rules of who is told of what, and their receivers; list alerts that fire or did.",
    "artifacts": "List artifacts of runs, give aliases, copy them into the lake, fetch them, and show who used them.",
    "slo": "Show what was attained of service level objectives, and which alerts fire.",
    "lineage": "Follow a number back to data files and segments, and verify their digests.",
    "detectors": "List what looks for faults, with its thresholds.",
    "prices": "Make a table of device prices from cloud bills in FOCUS.",
    "mfu": "Compute model FLOP/s utilization from its inputs.",
    "reliability": "Say how often to save, and the effective training time to expect.",
    "what-if": "Estimate how much faster a run would have been without stragglers.",
    "backup": "Copy the lake to another place: only what is not there yet.",
    "restore": "Restore the lake, or a table, from its backups, into an empty place.",
    "repair": "Put back what a table has lost, from the newest backup: log entries, data files.",
    "drill": "Restore the newest backup into a scratch folder, verify it, and measure RPO and RTO.",
    "delete": "Delete a run of your own, for good, with a certificate.",
    "audit": "Read and verify the audit log.",
    "verify-artifact": "Hash an artifact again and compare it with its recorded digest.",
    "bench": "Generate synthetic data for measurements.",
}
SECTIONS = {
    "First steps": ("demo", "calibrate", "config", "doctor", "completion"),
    "Bring data in and keep it in shape": (
        *("agent", "import", "pipeline", "ingest", "check", "rollup", "upkeep", "status", "up", "deploy"),
        *("quality", "replay", "disown", "renumber", "migrate", "backup", "restore", "repair", "drill"),
    ),
    "Look at runs": (
        *("runs", "show", "watch", "compare", "plot", "series", "what-if", "trace", "otlp", "media", "artifacts"),
        *("tag", "delete"),
    ),
    "Ask and report": (
        "sql",
        "report",
        "ui",
        "incidents",
        "playbooks",
        "alerts",
        "slo",
        "detectors",
        "catalog",
        "metric",
        "request-signal",
        "mfu",
        "reliability",
    ),
    "Govern": (
        *("retain", "erase", "audit", "approvals", "roles", "grant", "grants", "revoke", "share", "sharing"),
        *("verify-artifact", "lineage"),
    ),
}
"""Headings under which the help lists commands; other commands come last."""
_SHARED_MODULES = {
    **dict.fromkeys(("ingest", "rollup", "upkeep", "pipeline"), "stages"),
    **dict.fromkeys(("replay", "disown", "renumber"), "corrections"),
    **dict.fromkeys(("grant", "revoke"), "grants"),
    **dict.fromkeys(("show", "compare", "series"), "runs"),
    **dict.fromkeys(("restore", "drill", "repair"), "backup"),
    "up": "deploy",
    "sharing": "share",
    "request_signal": "metric",
    "detectors": "incidents",
    "prices": "import_",
    "trace": "plot",
    "reliability": "slo",
}
"""Modules of commands whose name differs from the module's."""
_WITHOUT_FRAMES = frozenset(
    {
        "catalog",
        "compare",
        "media",
        "otlp",
        "plot",
        "runs",
        "series",
        "show",
        "sql",
        "status",
        "tag",
        "trace",
        "watch",
        "what-if",
    }
)
"""Commands that never pass pandas objects to pyarrow, and so need not import pandas."""
_PIPELINE = {
    "dask",
    "datafusion",
    "deltalake",
    "distributed",
    "great_expectations",
    "jinja2",
    "markupsafe",
    "pandas",
    "plotille",
    "prefect",
    "prompt_toolkit",
    "rich",
    "sqlglot",
    "starlette",
    "torch",
    "uvicorn",
}


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process immediately while modules are imported.

    A KeyboardInterrupt may be lost there: an import within a C callback ignores it, and the command continues.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in SUMMARIES:
            return None
        name = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name.replace("-", "_")
        with _ended_by_ctrl_c():
            module = importlib.import_module(f"ranklake.commands.{_SHARED_MODULES.get(name, name)}")
        command: click.Command = getattr(module, name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of commands without importing each module, as click would."""
        offered = [
            CompletionItem(name, help=summary) for name, summary in SUMMARIES.items() if name.startswith(incomplete)
        ]
        return offered or click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[:1] == ["help"]:
            args = [*args[1:2], "--help"]
            if len(args) == 1:
                click.echo(ctx.get_help())  # noqa: TID251 - our own words
                ctx.exit()
        if args and not args[0].startswith("-") and args[0] not in SUMMARIES:
            ctx.fail(f"no such command {args[0]!r}; {did_you_mean(args[0], SUMMARIES)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        others = tuple(name for name in SUMMARIES if not any(name in names for names in SECTIONS.values()))
        wide = max(map(len, SUMMARIES))
        for heading, names in {**SECTIONS, "Other": others}.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{wide}}", SUMMARIES[name]) for name in names])


def _show_version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        text = importlib.import_module("ranklake.version").version_text()
        click.echo(f"ranklake, version {text}")  # noqa: TID251 - our own words
        ctx.exit()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
    help="Show the version, with its commit where that is known, and exit.",
)  # fmt: skip
def cli() -> None:
    """Telemetry of distributed ML training, kept as governed Delta tables."""


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit. The process belongs to the command, so pandas can be hidden from pyarrow."""
    arguments = sys.argv[1:] if args is None else args
    if arguments and arguments[0] in _WITHOUT_FRAMES:
        with _ended_by_ctrl_c():
            importlib.import_module("ranklake.arrow_alone").leave_pandas_out()
    sys.exit(run(args))


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Unexpected errors keep their traceback: they are bugs."""
    with guarded():
        return _run(args)


def _run(args: Sequence[str] | None) -> int:
    try:
        result = cli.main(args, prog_name="ranklake", standalone_mode=False)
    except BrokenPipeError:
        say_nothing()
        return 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)  # noqa: TID251 - our own words
        return error.exit_code
    except (RanklakeError, click.ClickException, click.Abort, KeyboardInterrupt, ModuleNotFoundError, OSError) as error:
        line, code = _explain(error)
        redact = importlib.import_module("ranklake.redaction.redact").redact
        others = error.others if isinstance(error, RanklakeError) else ()
        for message in (line, *map(str, others)):
            text = printable(redact(" ".join(message.split())))
            click.echo(f"ranklake: {text}", err=True)  # noqa: TID251 - printable already
        return code
    return result if isinstance(result, int) else 0


def _explain(error: BaseException) -> tuple[str, int]:
    match error:
        case RanklakeError():
            return str(error), error.exit_code
        case click.UsageError(ctx=click.Context() as ctx):
            message = error.format_message().rstrip(".")
            return f"{message}{' See' if message.endswith('?') else '; see'} '{ctx.command_path} --help'", 2
        case click.ClickException():
            return error.format_message(), 2
        case ModuleNotFoundError() if (error.name or "").split(".")[0] in _PIPELINE:
            missing = (error.name or "").split(".")[0]
            extra = {"torch": "torch", "jinja2": "report", "markupsafe": "report"}.get(missing, "pipeline")
            return f"{missing} is not installed; pip install 'ranklake[{extra}]'", 2
        case ModuleNotFoundError():
            raise error
        case OSError():  # a full disk, a read-only place, an unreachable store: not bugs
            where = f"{error.filename}: " if error.filename else ""
            return f"{where}{error.strerror or error}; fix that and run it again", 2
        case _:
            return "interrupted; run it again to go on where it stopped", 130
