"""The SQL of facts about runs; readers can run each text as it is."""

import re
from collections.abc import Collection
from typing import Final

from ranklake.insight.runs.asking import sql_text
from ranklake.lake.query.literal import literal

_HERE: Final = "ranklake.insight.runs"
_NAMED: Final = re.compile(r"\$(?:runs?|metric)\b")
_PART: Final = (
    "least({parts} - 1, CAST(CAST(step - first_step AS DOUBLE) * {parts}"
    " / (CAST(last_step - first_step AS DOUBLE) + 1) AS BIGINT))"
)
"""Expression of the part of a run's steps that a step is in; in floats, since a step may be near 2^62."""
_BRACES: Final = re.compile(r"\{(where|having|runs|ranks)\}")


def of_run(name: str, run: str, metric: str = "", /, **parts: int | str) -> str:
    """Return the SQL of a file beside this module for one run; `parts` fill its braces, `metric` is $metric."""
    return of_runs(name, (run,), metric, **parts)


def of_runs(name: str, runs: tuple[str, ...], metric: str = "", /, **parts: int | str) -> str:
    """Return the SQL of a file beside this module for some runs: ``$runs`` are all of them, ``$run`` is the first."""
    text = sql_text(_HERE, name).replace("{part}", _PART)
    text = text.replace("{axis}", sql_text(_HERE, "axis")).replace("{placed}", sql_text(_HERE, "placed").rstrip("\n"))
    filled = text.format(**parts)
    named = {"$run": literal(runs[0]), "$runs": ", ".join(map(literal, runs)), "$metric": literal(metric)}
    return _NAMED.sub(lambda match: named[match[0]], filled)  # in one pass, since a run may be called $metric


def summaries(where: str = "TRUE", having: str = "TRUE") -> str:
    """Return the SQL of one row per run, filtered by conditions on attempts and on runs."""
    return _fill_sql("summary", where=where, having=having)


def run_condition(runs: tuple[str, ...]) -> str:
    """Return the condition for some runs, by name."""
    return f"run IN ({', '.join(map(literal, runs))})" if runs else "FALSE"


def variance(runs: tuple[str, ...]) -> str:
    """Return the SQL of mean and deviation over some runs."""
    return _fill_sql("variance", runs=summaries(run_condition(runs)))


def nodes(where: str, ranks: Collection[int] | None = None) -> str:
    """Return the SQL of one row per attempt and rank with its node, of some runs; of some ranks, or of all."""
    of_ranks = "TRUE" if ranks is None else f"rank IN ({', '.join(map(str, sorted(ranks)))})"
    return _fill_sql("nodes", runs=where, ranks=of_ranks)


def hardware_findings_sql(where: str, ranks: Collection[int]) -> str:
    """Return the SQL of findings about devices and hosts of some ranks of some runs."""
    return _fill_sql("beneath", runs=where, ranks=f"rank IN ({', '.join(map(str, sorted(ranks)))})")


def annotations(where: str) -> str:
    """Return the SQL of current names, tags and summary values of some runs."""
    return _fill_sql("annotations", where=where)


def last_values(where: str) -> str:
    """Return the SQL of the last finite value of metrics, one row per run and metric: of the lowest rank, by time."""
    return (
        "SELECT run, metric, last_value(value ORDER BY rank DESC, ts ASC) AS value\nFROM scalars\n"
        f"WHERE {where} AND value IS NOT NULL\nGROUP BY run, metric\n"
    )


def totals() -> str:
    """Return the SQL of counts over all runs, in one row."""
    return _fill_sql("totals", runs=summaries())


def marks(where: str) -> str:
    """Return the SQL of one row per run that changes with its records."""
    return _fill_sql("marks", where=where)


def run_ends_sql(where: str) -> str:
    """Return the SQL of one row per run with its end."""
    return f"SELECT * FROM run_goodput WHERE {where}\n"  # noqa: S608 - quoted


def samples_sql(runs: tuple[str, ...]) -> str:
    """Return the SQL of one row per run that changes with samples of its devices."""
    return _fill_sql("sampled", where=f"holder_{run_condition(runs)}" if runs else run_condition(runs))


def previous_runs_sql(where: str) -> str:
    """Return the SQL of one row per run with an earlier run of its job, filtered by a condition."""
    return _fill_sql("previous", where=where)


def incident_marks(where: str) -> str:
    """Return the SQL of one row per incident that changes with it, of some runs."""
    columns = "run, incident_id, findings, severity, end_ts, last_ts"
    return f"SELECT {columns} FROM incidents WHERE {where} ORDER BY incident_id\n"  # noqa: S608 - quoted


def teams(where: str) -> str:
    """Return the SQL of one row per run that is charged to a team, of some runs."""
    return (
        "SELECT run, last_value(team ORDER BY attempt) AS team\n"
        f"FROM attempt_facts\nWHERE team IS NOT NULL AND {where}\nGROUP BY run\nORDER BY run\n"
    )


def failed_checks() -> str:
    """Return the SQL of one row per failed check whose rows may be in numbers of runs."""
    return sql_text(_HERE, "failed_checks")


def rewrites() -> str:
    """Return the SQL of one row that changes with rows that were changed."""
    return sql_text(_HERE, "rewrites")


def verifications_sql() -> str:
    """Return the SQL of one row that changes with artifacts that were hashed again."""
    return "SELECT count(*) AS n FROM audit WHERE action = 'artifact.verify'\n"


def _fill_sql(name: str, **parts: str) -> str:
    """Return the SQL of a file with its braces filled, in one pass, since a run may be called ``{having}``."""
    return _BRACES.sub(lambda match: parts[match[1]], sql_text(_HERE, name))
