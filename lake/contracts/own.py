"""Rules for operators' tables besides the schema, so that all code can treat them like packaged ones.

What is wrong is noted with the document, so that all of it is reported at once; `load` raises it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ranklake.errors import did_you_mean
from ranklake.lake.contracts.document import Document
from ranklake.lake.contracts.model import Column, Contract, RollupFacts, RollupInput
from ranklake.lake.contracts.overlay import QUERIES, Overlay

MAX_NAME: Final = 64
MAX_COLUMNS: Final = 1000
RESERVED_TABLES: Final = frozenset({"affected_runs", "histograms", "information_schema", "intervals", "rows"})
"""Names of what is no table: files of the local spool, and what a rollup's session holds beside tables."""
RESERVED_COLUMNS: Final = frozenset({"m", "refused", "refused_row", "s"})
"""Keys of a recorded row, and of one that an importer refused, beside its columns."""
_WRITTEN: Final = "_written"


def facts_of(document: Document, overlay: Overlay) -> RollupFacts | None:
    """Return how an own table is computed, with its query; None for a recorded one, or one without inputs."""
    facts: Mapping[str, Any] = document.content
    name = facts["table"]
    query = f"{QUERIES}/{name}.sql"
    if facts["kind"] != "derived":
        if "rollup" in facts:
            document.add(("rollup",), f"{name!r} is a {facts['kind']} table and has a rollup", "write `kind: derived`")
        if query in overlay.files:
            document.add(("kind",), f"{name!r} is a {facts['kind']} table and has a {query}", "write `kind: derived`")
        return None
    if "rollup" not in facts:
        document.add(("kind",), f"derived table {name!r} says no inputs", "add rollup: {inputs: [{table: …}]}")
        return None
    if query not in overlay.files:
        document.add(("rollup",), f"derived table {name!r} has no query", f"write it into {query}")
    spec: Mapping[str, Any] = facts["rollup"]
    scope = spec.get("scope", "partition")
    inputs = tuple(_input(document, place, one, scope) for place, one in enumerate(spec["inputs"]))
    for place, entry in enumerate(inputs):
        if entry.table in {before.table for before in inputs[:place]}:
            document.add(("rollup", "inputs", place), f"input {entry.table!r} appears twice", "remove one")
    values = {one["name"]: float(one["value"]) for one in spec.get("parameters", ())}
    return RollupFacts(scope, inputs, tuple(sorted(values.items())), overlay.files.get(query, ""))


def _input(document: Document, place: int, spec: Mapping[str, Any], scope: str) -> RollupInput:
    reach = spec.get("reach", "run" if scope == "run" else "day")
    if (reach == "run") != (scope == "run"):
        hint = "of a rollup of whole runs it is run; else day, days or until"
        document.add(("rollup", "inputs", place, "reach"), f"reach {reach!r} does not go with scope {scope!r}", hint)
    return RollupInput(spec["table"], reach, tuple(spec.get("classified", ())))


def agree_table(document: Document, built: Contract) -> None:
    """Hold a whole table of an overlay to what rooms rely on."""
    name = built.table
    if len(name) > MAX_NAME or name in RESERVED_TABLES or name.endswith(_WRITTEN):
        why = f"is longer than {MAX_NAME} letters" if len(name) > MAX_NAME else "is reserved"
        document.add(("table",), f"table name {name!r} {why}", "take another name")
    if built.kind == "system":
        document.add(("kind",), f"{name!r} is a system table: only ranklake writes those", "write `kind: fact`")
    if built.partition != ("date",):
        document.add(("partition",), f"{name!r} is not partitioned by date", "write partition: [date]")
    if built.kind == "fact" and not built.envelope:
        hint = "add `envelope: true`; its columns, run, rank and ts among them, come by themselves"
        document.add(("kind",), f"fact table {name!r} has no envelope", hint)
    if built.kind == "derived":
        _agree_derived(document, built)
    if len(built.columns) > MAX_COLUMNS:
        document.add(("columns",), f"{len(built.columns)} columns are more than {MAX_COLUMNS}", "split the table")
    agree_columns(document, tuple(one for one in built.columns if not (built.envelope and one.id < 20)))  # noqa: PLR2004 - the envelope's ids


def _agree_derived(document: Document, built: Contract) -> None:
    if built.rollup is None:  # `facts_of` noted it
        return
    if built.envelope:
        document.add(("envelope",), f"derived table {built.table!r} has an envelope", "name its columns instead")
    needed = ("run", "date") if built.rollup.scope == "run" else ("date",)
    for name, type_ in (("run", "string"), ("date", "date")):
        if name in needed and (name not in built or built.column(name).type != type_):
            message = f"derived table {built.table!r} has no column {name!r} of type {type_}"
            document.add(("columns",), message, "add it; the query has to give it")


def agree_columns(document: Document, columns: Sequence[Column]) -> None:
    """Hold columns of an overlay to what rooms rely on."""
    names = [one["name"] for one in document.content.get("columns", ())]
    for column in columns:
        here = ("columns", names.index(column.name)) if column.name in names else ("columns",)
        if column.name in RESERVED_COLUMNS or len(column.name) > MAX_NAME:
            why = "is reserved" if column.name in RESERVED_COLUMNS else f"is longer than {MAX_NAME} letters"
            document.add((*here, "name"), f"column name {column.name!r} {why}", "take another name")
        if column.class_ != "operational" and column.mask is None:
            hint = "add mask: hash, redact or nullify"
            document.add((*here, "class"), f"column {column.name!r} is {column.class_} and has no mask", hint)


def agree_inputs(document: Document, built: Contract, contracts: Mapping[str, Contract]) -> None:
    """Hold the inputs of an own rollup against the tables that there are."""
    for place, item in enumerate(built.rollup.inputs if built.rollup else ()):
        here = ("rollup", "inputs", place)
        if item.table not in contracts:
            document.add((*here, "table"), f"no table {item.table!r}", did_you_mean(item.table, contracts))
            continue
        source = contracts[item.table]
        if source.kind == "system" or source.status == "planned":
            document.add((*here, "table"), f"{item.table!r} is no input: nothing tells when it changes", "remove it")
        if item.reach == "run" and "run" not in source:
            document.add((*here, "table"), f"{item.table!r} has no column run", "write scope: partition")
        for at, name in enumerate(item.classified):
            if name not in source:
                hint = did_you_mean(name, source.names)
                document.add((*here, "classified", at), f"{item.table!r} has no column {name!r}", hint)
            elif source.column(name).class_ == "operational":
                message = f"column {name!r} of {item.table!r} is operational"
                document.add((*here, "classified", at), message, "remove it from the list; it is seen anyway")


def cycle(rollups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a cycle among rollups (inputs by name), its first again at the end; empty if there is none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in rollups.get(name, ()):
            if loop := visit(other, [*path, name]):
                return loop
        done.add(name)
        return []

    return next((loop for name in sorted(rollups) if (loop := visit(name, []))), [])
