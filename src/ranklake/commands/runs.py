"""``ranklake runs``, ``compare`` and ``series``: find runs, compare them, and read their series."""

import re
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from ranklake.commands.completion import complete_runs
from ranklake.commands.context import noted_role_of, with_context
from ranklake.commands.options import contracts_option, json_option, lake_option, role_option
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.insight.ended_metrics import ended_metrics, ended_of_runs
from ranklake.insight.runs.annotations import annotations_of_each
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.caveats import caveats
from ranklake.insight.runs.compare import compare as compared
from ranklake.insight.runs.curves import (
    compared_metrics,
)
from ranklake.insight.runs.facts import gather
from ranklake.insight.runs.find import SORTS, STATUSES, RunConditions, find_run
from ranklake.insight.runs.listing import list_runs
from ranklake.insight.runs.repeats import repeat_groups
from ranklake.insight.runs.report import run_questions
from ranklake.insight.runs.slowdown import slowdown_cause
from ranklake.lake.rollups.life.register import of_column
from ranklake.lake.rollups.life.select import select
from ranklake.lake.rollups.life.series import lives_with, select_distributions
from ranklake.lake.rollups.life.series import series as series_of
from ranklake.terminal import width
from ranklake.views.html.compare_pages import section
from ranklake.views.html.site import publish
from ranklake.views.json_output import show_json
from ranklake.views.result_set import as_csv, as_json, as_table
from ranklake.views.run import run_lines
from ranklake.views.run_causes import path_facts, path_line
from ranklake.views.runs import comparison_lines, run_table
from ranklake.views.tell import tell

_FORMATS = {"table": as_table, "csv": as_csv, "json": as_json}
_READ = ("scalars", "steps", "step_rollup")
_MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])


@click.command()
@click.argument("metric")
@click.option("--from", "begin", type=_MOMENT, metavar="DATE|TIME", help="First moment, UTC.")
@click.option("--to", "end", type=_MOMENT, metavar="DATE|TIME", help="Moment before which it ends, UTC.")
@click.option("--run", shell_complete=complete_runs, help="Only this run.")
@click.option("--format", "chosen", type=click.Choice([*_FORMATS]), default="table", show_default=True)
@click.option("--distributions", is_flag=True, help="Show its histograms: count, sum, mean, least and greatest value.")
@click.option("--sql", "as_sql", is_flag=True, help="Print the query instead, for a dashboard.")
@lake_option
@contracts_option
@with_context
def series(
    context: Context,
    metric: str,
    begin: datetime | None,
    end: datetime | None,
    run: str | None,
    chosen: str,
    *,
    distributions: bool,
    as_sql: bool,
) -> None:
    """Show the values of METRIC in its unit by step, including values recorded under former names.

    METRIC may be a column of steps, too: loss is train/loss.

    If two names have a value for one step, the newer name's is shown. Column source names its origin. A step that lacks
    a part of a split metric has no value, with a reason. Downsampled rows give means of intervals.
    """
    moments = [None if one is None else one.replace(tzinfo=UTC) for one in (begin, end)]
    lake = context.open_lake()
    if as_sql:
        every = lives_with(lake, metric, of_distributions=distributions)
        metric = metric if metric in every else of_column(lake, metric)
        tell(select_distributions(every, metric) if distributions else select(lake, every, metric, intervals=True))
        return
    chosen_run = None if run is None else find_run(asking(lake), run)
    result = series_of(lake, metric, moments[0], moments[1], chosen_run, of_distributions=distributions)
    click.echo(_FORMATS[chosen](result.rows), color=True)  # noqa: TID251 - a document, as it is
    title = f"{metric} in {result.life.unit or 'an unknown unit'}, {result.life.status}"
    against = caveats(asking(lake), (chosen_run,)).failed.get(chosen_run, ()) if chosen_run else ()
    tell(*(f"in doubt: {check.about} fails" for check in against if check.table in _READ), err=True)
    tell(title if result.life.since is None else f"{title} since {result.life.since:%Y-%m-%d}")


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN…", shell_complete=complete_runs)
@click.option("--page", "as_page", is_flag=True, help="Write a page of the report, with curves on the same axes.")
@click.option(
    "--out",
    metavar="URI",
    default="",
    help="With --page: folder or URI of the site.  [default: [report] out, or report]",
)
@role_option
@json_option
@lake_option
@with_context
def compare(
    context: Context, runs: tuple[str, ...], role: str | None, *, as_page: bool, out: str, as_json: bool
) -> None:
    """Compare runs: results, time of steps, and differences in settings and environment.

    A run may be named by the beginning of its name. Three or more runs also get mean and deviation. The page has
    curves, and tests whether groups of repeats differ by more than chance; it replaces the previous comparison.
    """
    lake = context.open_lake()
    questions = run_questions(lake, noted_role_of(context, lake, role))
    ask = questions.ask
    names = tuple(dict.fromkeys(find_run(ask, run) for run in runs))
    if len(names) == 1:
        raise RanklakeError("one run has nothing to be compared with", where=names[0], hint="name another run")
    result = compared(ask, names, questions.ended)
    if as_page:
        curves = compared_metrics(ask, names, questions.units, questions.scalars)
        page = section(result, curves, repeat_groups(ask, result))
        results = publish(context.place(out or context.config.report.out or "report"), page)
        if as_json:
            show_json({"headline": page.headline, "published": results})
        else:
            tell(f"{page.headline}: {results.out}/{results.first}")
    elif as_json:
        show_json(result)
    else:
        tell(*comparison_lines(result, width()))


_AGO: Final = re.compile(r"(\d{1,6})([hd])")
_UNITS: Final = {"h": timedelta(hours=1), "d": timedelta(days=1)}
_LIMIT: Final = 25
_MOST: Final = 1_000_000
_HINT: Final = "write a date (2026-03-01), a time (2026-03-01T12:00) or how long ago (12h, 7d); times are UTC"


class _Moment(click.ParamType[datetime]):
    name = "TIME"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the given time, in UTC."""
        try:
            if result := _AGO.fullmatch(value):
                return datetime.now(UTC) - int(result[1]) * _UNITS[result[2]]
            moment = datetime.fromisoformat(value)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time; {_HINT}", param, ctx)


@click.command()
@click.argument("name", required=False, default="", metavar="[NAME]", shell_complete=complete_runs)
@click.option("--job", default="", help="Runs of this job.")
@click.option("--status", type=click.Choice(STATUSES), help="Runs whose last attempt has this status.")
@click.option("--team", default="", help="Runs charged to this team.")
@click.option("--user", default="", help="Runs that this account started.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Runs with this label; repeatable.")
@click.option("--config", "settings", multiple=True, metavar="NAME=VALUE",
              help="Runs with this value in their config; outer.inner for nested settings; repeatable.")  # fmt: skip
@click.option("--tag", "tags", multiple=True, metavar="TAG[=VALUE]", help="Runs with this tag; repeatable.")
@click.option("--since", type=_Moment(), help="Runs that began at or after a date, a time (UTC), or 12h or 7d ago.")
@click.option("--until", type=_Moment(), help="Runs that began before this time.")
@click.option("--sort", type=click.Choice(tuple(SORTS)), default="newest", show_default=True,
              help="Order; failures, low ratios and long steps first; or low loss, or high pace first.")  # fmt: skip
@click.option("--where", "conditions", multiple=True, metavar="VALUE<NUMBER",
              help="Runs whose value is so: metric:NAME, summary:NAME or config:NAME, a sign (< <= = != >= >), and "
              "what it is held against; repeatable.")  # fmt: skip
@click.option(
    "--by", metavar="VALUE", default="", help="Sort by metric:NAME, summary:NAME or config:NAME, and show it."
)
@click.option("--highest", is_flag=True, help="With --by: highest first; by default lowest.")
@click.option("--limit", type=click.IntRange(1, _MOST), default=_LIMIT, show_default=True, help="Most runs to show.")
@role_option
@json_option
@lake_option
@with_context
def runs(  # noqa: PLR0913 - one parameter an option
    context: Context,
    *,
    name: str,
    job: str,
    status: str | None,
    team: str,
    user: str,
    labels: tuple[str, ...],
    settings: tuple[str, ...],
    tags: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    sort: str,
    conditions: tuple[str, ...],
    by: str,
    highest: bool,
    limit: int,
    role: str | None,
    as_json: bool,
) -> None:
    """Find runs; NAME is the beginning of their names, or of their display names.

    Shows the last attempt's status, and numbers of all attempts. A metric's value is its last finite one. Runs with the
    tag archived are left out; --tag archived shows them.
    """
    lake = context.open_lake()
    seen_as = noted_role_of(context, lake, role)
    ask = asking(lake, seen_as)
    wanted = RunConditions(
        run=name,
        job=job,
        status=status or "",
        team=team,
        user=user,
        labels=_pairs("--label", labels),
        settings=_pairs("--config", settings),
        tags=dict(item.partition("=")[::2] for item in tags),
        since=since,
        until=until,
        hides_archived=True,
    )
    listed = list_runs(ask, wanted, sort=sort, where=conditions, by=by, is_highest_first=highest, limit=limit)
    rows, more, values = listed.rows, listed.has_more, listed.values
    annotations, answered = annotations_of_each(ask, [row["run"] for row in rows])
    doubts = caveats(ask, [row["run"] for row in rows])
    ended = ended_of_runs(ask, ended_metrics(lake, seen_as), [row["run"] for row in rows])
    if as_json:
        every = [
            {
                **row,
                "said": annotations[row["run"]],
                "failed_checks": doubts.failed.get(row["run"], ()),
                "ended_metrics": ended.get(row["run"], ()),
                **({"value": values.get(row["run"])} if by else {}),
            }
            for row in rows
        ]
        sql = {"sql": listed.sql, "said_sql": answered.sql, "failed_checks_sql": doubts.answered.sql}
        show_json({"runs": every, "more": more, **sql})
        return
    tell(*run_table(rows, annotations, width(), doubts, ended, (by, values) if by else None))
    if more:
        tell(f"the first {limit:,}; --limit shows more", err=True)
    if not rows:
        is_all = wanted == RunConditions(hides_archived=True) and not conditions
        tell("run 'ranklake pipeline' to bring runs in" if is_all else "leave out a condition to see more", err=True)


def _pairs(option: str, pairs: tuple[str, ...]) -> dict[str, str]:
    result = dict(item.partition("=")[::2] for item in pairs)
    for item in pairs:
        if "=" not in item or item.startswith("="):
            raise RanklakeError(f"{item!r} is not NAME=VALUE", where=option, hint=f"write {option} optimizer.lr=0.001")
    return result


MOST_SHOWN_SPANS = 200_000
"""Most spans of a run that is simulated here, which takes a second; use ``ranklake what-if`` for larger runs."""


@click.command()
@click.argument("run", shell_complete=complete_runs)
@role_option
@json_option
@lake_option
@with_context
def show(context: Context, run: str, role: str | None, *, as_json: bool) -> None:
    """Show RUN: ranks, loss, MFU, goodput, stragglers, code, data, artifacts, media, gaps.

    RUN may be the beginning of a name, if it is unique. --json has the SQL of every number.
    """
    lake = context.open_lake()
    seen_as = noted_role_of(context, lake, role)
    ask = asking(lake, seen_as)
    facts = gather(ask, find_run(ask, run))
    cause = slowdown_cause(lake, ask, facts.run, seen_as, MOST_SHOWN_SPANS)
    ended = ended_of_runs(ask, ended_metrics(lake, seen_as), [facts.run]).get(facts.run, ())
    if as_json:
        every = {one.name: getattr(facts, one.name) for one in fields(facts)}
        show_json({**every, "critical_path": path_facts(cause), "ended_metrics": ended})
    else:
        tell(*run_lines(facts, width(), path=path_line(cause), ended=ended))
