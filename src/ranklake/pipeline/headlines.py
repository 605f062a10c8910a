"""Counts of a stage's result: the first is in the name of its run, all are in its log."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from ranklake.printable import counted

Done = dict[str, Any]


def _ingest(done: Done) -> list[str]:
    more = {"quarantined": "rows_rejected", "seen before": "rows_duplicate"}
    counts = [f"{done[name]:,} {words}" for words, name in more.items() if done[name]]
    return [counted(done["segments"], "segment"), f"{counted(done['rows_stored'], 'row')} stored", *counts]


def _check(done: Done) -> list[str]:
    outcomes = [f"{count:,} {status}" for status, count in done["checks"].items() if status != "skipped"]
    standing = [f"{len(done['standing']):,} still failing"] if done["standing"] else []
    return [counted(done["partitions"], "partition"), *outcomes, *standing]


def _rollup(done: Done) -> list[str]:
    written = [rollup for rollup in done["rollups"] if rollup["partitions"]]
    partitions = sum(len(rollup["partitions"]) for rollup in written)
    return [
        counted(partitions, "partition"),
        f"{sum(rollup['rows'] for rollup in written):,} rows of {len(written)} tables",
    ]


def _upkeep(done: Done) -> list[str]:
    merged = f"{done['files_before']:,} files merged into {done['files_after']:,}"
    return [merged, f"{sum(done['purged'].values()):,} files purged", counted(len(done["checkpoints"]), "checkpoint")]


def _catalog(done: Done) -> list[str]:
    return [f"{done['tables']:,} tables", f"{done['columns']:,} columns", f"{done['metrics']:,} metrics"]


def _slo(done: Done) -> list[str]:
    states = Counter(each["status"] for each in done["objectives"])
    firing = sum(bool(each["alert"]) for each in done["objectives"])
    words = ((states["met"], "met"), (states["at_risk"], "at risk"), (states["missed"], "missed"), (firing, "alerting"))
    return [f"{count:,} {word}" for count, word in words if count] or ["nothing to judge"]


def _report(done: Done) -> list[str]:
    published = done["published"]
    return [f"{published['written']:,} of {counted(published['pages'], 'page')} written", done["quality"]["headline"]]


def _share(done: Done) -> list[str]:
    changed = sum(share["changed"] for share in done["refreshed"])
    counts = [f"{changed:,} of {counted(len(done['refreshed']), 'share')} changed"]
    return [*counts, *([f"{len(done['dropped']):,} dropped"] if done["dropped"] else [])]


def _playbooks(done: Done) -> list[str]:
    return [f"{counted(count, 'step')} {outcome}" for outcome, count in done["outcomes"].items()] or ["no step"]


def _alerts(done: Done) -> list[str]:
    if done["fault"]:
        return ["rules cannot be used"]
    if done["is_left_to_another"]:
        return ["left to another round, which has claimed it"]
    words = (("lost", "receiver"), ("unknown", "rule"))
    counts = [f"{counted(len(done[word]), noun)} {word}" for word, noun in words if done[word]]
    return [f"{done['firing']:,} firing", f"{counted(done['messages'], 'message')} sent", *counts]


def _retention_plan(done: Done) -> list[str]:
    plan = done["plan"]
    return (
        ["nothing due"] if plan is None else [f"{counted(plan['rows'], 'row')} {plan['state']}", plan["retention_plan"]]
    )


def _retention_apply(done: Done) -> list[str]:
    return [f"{counted(done['rows'], 'row')} removed" if done["applied_now"] else "applied before"]


def _verify_artifacts(done: Done) -> list[str]:
    altered = sum(not artifact["verified"] for artifact in done["artifacts"])
    counts = [f"{counted(len(done['artifacts']), 'artifact')} hashed again, {altered:,} not as recorded"]
    more = {"not opened": "not_allowed", "waiting": "waiting"}
    return counts + [f"{done[name]:,} {words}" for words, name in more.items() if done[name]]


def _backups(done: Done) -> list[str]:
    failed = [f"{len(done['failed']):,} failed"] if done["failed"] else []
    return [f"{counted(len(done['places']), 'place')} done", *failed]


def _doctor(done: Done) -> list[str]:
    return [f"{counted(len(done['findings']), 'finding')} of {counted(sum(done['counts'].values()), 'line')}"]


_HEADLINES: Final[Mapping[str, Callable[[Done], list[str]]]] = {
    "ingest": _ingest,
    "check": _check,
    "rollup": _rollup,
    "upkeep": _upkeep,
    "catalog": _catalog,
    "slo": _slo,
    "report": _report,
    "share": _share,
    "playbooks": _playbooks,
    "alerts": _alerts,
    "retention_plan": _retention_plan,
    "retention_apply": _retention_apply,
    "verify_artifacts": _verify_artifacts,
    "backup": _backups,
    "doctor": _doctor,
    "drill": _backups,
}


def headline(stage: str, done: Done) -> list[str]:
    """Return counts of a stage's result, the most important first; empty for stages without counts."""
    damaged = [counted(len(done["damaged"]), "damaged file")] if done.get("damaged") else []
    describe = _HEADLINES.get(stage)
    return [*(describe(done) if describe else []), *damaged]
