"""The demo's summary on a terminal."""

from collections.abc import Sequence
from typing import Any

from ranklake.demo.facts import PHASES, Facts
from ranklake.demo.sources import Sources
from ranklake.views.table import numbers, table_lines
from ranklake.views.text_plot import text_plot


def summary_lines(facts: Facts, command: str) -> list[str]:
    """Return the summary as lines; `command` is what to type before a question to the lake."""
    head = f"run {facts.run}  {facts.summary.get('status', 'unknown')}"
    if facts.summary.get("injected"):
        head += f"  [injected on purpose: {facts.summary['injected']}]"
    lines = ["", head, "", *_rank_table(facts.ranks), ""]
    lines += ["loss (nats a token, mean of the ranks)", *text_plot(facts.loss), ""]
    lines += [_mfu(facts.summary), _goodput(facts.summary), *_stragglers(facts), *_sources(facts.sources), ""]
    lines += [*_books(facts), _checks(facts.checks), ""]
    lines += ["try next", *(f'  {command} "{sql}"' for sql in _questions(facts.run))]
    return lines


def _rank_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    phases = [phase for phase in PHASES if any(row[phase] is not None for row in rows)]
    counts = ("rank", "  trainer counted", "  rows in steps", "  mean ms a step")
    cells = [
        (
            str(row["rank"]),
            f"{row['counted']:,}",
            f"{row['n']:,}",
            _ms(row["step"]),
            *(_ms(row[phase]) for phase in phases),
            _percent(row["phases_ratio"]),
        )
        for row in rows
    ]
    return table_lines([*numbers(counts), *numbers([*phases, "in phases"], 12)], cells, gap="")


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.1f} %"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.2f}"


def _mfu(summary: dict[str, Any]) -> str:
    if summary.get("mfu_ratio") is None:
        return f"MFU         unknown: {summary.get('mfu_reason') or 'no summary of the run'}"
    return (
        f"MFU         {100 * summary['mfu_ratio']:.1f} % of a {summary['peak_dtype']} peak "
        f"({summary['peak_source']}); FLOPs {summary['flops_convention']}"
    )


def _goodput(summary: dict[str, Any]) -> str:
    if summary.get("goodput_ratio") is None:
        return "goodput     unknown: no productive step"
    return f"goodput     {100 * summary['goodput_ratio']:.1f} % of {summary['wall_ns'] / 1e9:.1f} s wall time"


def _stragglers(facts: Facts) -> list[str]:
    named = [row for row in facts.health if row["is_straggler"]]
    if not named:
        reasons = "; ".join(f"rank {row['rank']} {row['reason']}" for row in facts.health)
        return [f"stragglers  none ({reasons or 'no steps'})"]
    return [f"straggler   rank {row['rank']}: {row['reason'].removeprefix('straggler: ')}" for row in named]


def _books(facts: Facts) -> list[str]:
    total = {
        name: sum(getattr(item, name) for item in facts.balances)
        for name in ("recorded", "stored", "quarantined", "sampled_out", "gaps", "in_flight")
    }
    verdict = "the books add up" if facts.books_add_up else "THE BOOKS DO NOT ADD UP"
    fates = " + ".join(f"{total[name]:,} {name.replace('_', ' ')}" for name in total if name != "recorded")
    lines = [f"rows        {total['recorded']:,} recorded = {fates}: {verdict}"]
    lines += [f"            {item.table}: {fault}" for item in facts.balances for fault in item.faults]
    lines.append(f"            steps the trainer finished: {facts.lost} lost, {facts.repeated} twice")
    return lines


def _checks(checks: dict[str, Any]) -> str:
    outcomes = ", ".join(f"{count:,} {status}" for status, count in checks["checks"].items()) or "nothing new to check"
    return f"checks      {outcomes}; {checks['quarantined_rows']:,} rows quarantined"


def _questions(run: str) -> list[str]:
    return [
        "SELECT rank, count(*) n, avg(step_time_s) FROM steps GROUP BY rank",
        f"SELECT step, max_step_time_s, slowest_rank FROM step_rollup WHERE run = '{run}' ORDER BY 2 DESC LIMIT 5",  # noqa: S608
        "SELECT run, status, steps, mfu_ratio, goodput_ratio, straggler_rank FROM run_summary",
        f"SELECT rank, step, severity_text, message FROM logs WHERE run = '{run}' ORDER BY ts",  # noqa: S608
    ]


def _sources(sources: Sources) -> list[str]:
    return [_host(sources), _gpus(sources), _code(sources), *_data(sources), *_made(sources), _logs(sources)]


def _host(sources: Sources) -> str:
    host = sources.host
    if not host["n"]:
        return "host        no samples"
    cpu = "unknown" if host["cpu_ratio"] is None else f"{100 * host['cpu_ratio']:.0f} %"
    memory = "unknown" if host["memory_bytes"] is None else f"{host['memory_bytes'] / 2**30:.1f} GiB"
    return f"host        {host['n']:,} samples: CPU {cpu} busy, memory at most {memory}"


def _gpus(sources: Sources) -> str:
    if sources.gpu_rows:
        return f"GPU         {sources.gpu_rows:,} samples"
    return f"GPU         no samples: {sources.no_gpu or 'nothing recorded GPU telemetry in this run'}"


def _code(sources: Sources) -> str:
    code = sources.code
    commit = code.get("git_commit")
    if commit is None:
        where = "not from a git repository"
    else:
        where = f"commit {commit[:12]}{' with changes' if code.get('git_dirty') else ''}"
    machine = (code.get(name) for name in ("os_description", "cpu_model"))
    return "; ".join((f"code        {where}", *(what for what in machine if what)))


def _data(sources: Sources) -> list[str]:
    return [
        f"data        {row['name']} {row['version'] or ''}, {row['bytes'] or 0:,} bytes, "
        f"Merkle root {(row['merkle_root_sha256'] or 'unknown')[:12]}"
        for row in sources.datasets
    ]


def _made(sources: Sources) -> list[str]:
    return [f"artifact    {name}: {said}" for name, said in sources.artifacts.items()]


def _logs(sources: Sources) -> str:
    counts = ", ".join(f"{count:,} {severity}" for severity, count in sources.logs.items())
    return f"log lines   {counts or 'none'}"
