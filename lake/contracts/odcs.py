"""Exports contracts as documents of the Open Data Contract Standard (ODCS) 3.1, for other catalogs and tools.

Properties that the standard does not define (retention class, permanent column ids, masks, sort order) are exported as
`customProperties`. Checks are exported as quality rules of the standard's library where it has one, else as text.
"""

from typing import Any, Final

from ranklake.lake.contracts.checks.registry import fault_text, kind_of
from ranklake.lake.contracts.model import Check, Column, Contract

API_VERSION: Final = "v3.1.0"
_LOGICAL: Final = {
    "string": "string", "bool": "boolean", "int32": "integer", "int64": "integer", "float32": "number",
    "float64": "number", "decimal": "number", "timestamp": "timestamp", "date": "date", "int64_list": "array",
}  # fmt: skip
_PHYSICAL: Final = {
    "string": "string", "bool": "boolean", "int32": "integer", "int64": "long", "float32": "float",
    "float64": "double", "decimal": "decimal(38,9)", "timestamp": "timestamp", "date": "date",
    "int64_list": "array<long>",
}  # fmt: skip
"""Names of Delta Lake's types."""
_CLASSIFICATIONS: Final = {
    "operational": "internal", "pseudonymous": "restricted", "personal": "confidential", "secret": "secret"
}  # fmt: skip

Facts = dict[str, Any]


def document(contract: Contract) -> Facts:
    """Return a table's contract as an ODCS document, ready for YAML or JSON."""
    return {
        "apiVersion": API_VERSION,
        "kind": "DataContract",
        "id": f"ranklake.{contract.table}",
        "name": contract.table,
        "version": f"{contract.version}.0.0",
        "status": "active" if contract.status == "active" else "draft",
        "domain": "ml-training-telemetry",
        "dataProduct": "ranklake",
        "description": {"purpose": contract.summary},
        "team": {
            "name": contract.owner,
            "members": [
                {"username": contract.owner, "role": "owner"},
                {"username": contract.steward, "role": "steward"},
            ],
        },
        "slaProperties": [{"property": "retention", "value": contract.retention, "element": contract.table,
                           "description": "Class; the policy file says how long it is kept."}],
        "schema": [_table(contract)],
        "customProperties": _custom(
            tableKind=contract.kind, retentionClass=contract.retention, sortOrder=list(contract.sort)
        ),
    }  # fmt: skip


def _table(contract: Contract) -> Facts:
    facts: Facts = {
        "name": contract.table,
        "logicalType": "object",
        "physicalType": "table",
        "physicalName": contract.table,
        "description": contract.summary,
        "dataGranularityDescription": f"One row per {', '.join(contract.grain)}.",
        "properties": [_property(contract, column) for column in contract.columns],
    }
    if contract.checks:
        facts["quality"] = [_rule(check) for check in contract.checks]
    return facts


def _property(contract: Contract, column: Column) -> Facts:
    facts: Facts = {
        "name": column.name,
        "logicalType": _LOGICAL[column.type],
        "physicalType": _PHYSICAL[column.type],
        "description": column.doc,
        "required": column.required,
        "classification": _CLASSIFICATIONS[column.class_],
        "customProperties": _custom(
            columnId=column.id,
            dataClass=column.class_,
            unit=column.unit,
            mask=column.mask,
            format=column.format,
            sinceVersion=column.since,
            deprecated=column.deprecated,
            sunset=column.sunset,
            aliases=list(column.aka) or None,
        ),
    }
    if column.type == "int64_list":
        facts["items"] = {"logicalType": "integer", "physicalType": "long"}
    if column.name in contract.grain:
        facts |= {"primaryKey": True, "primaryKeyPosition": contract.grain.index(column.name) + 1}
    if column.name in contract.partition:
        facts |= {"partitioned": True, "partitionKeyPosition": contract.partition.index(column.name) + 1}
    if column.checks:
        facts["quality"] = [_rule(check) for check in column.checks]
    return facts


def _rule(check: Check) -> Facts:
    """Return a check as a quality rule. Rules of the library count failing rows and require a count of 0."""
    kind = kind_of(check)
    translated: Facts = {
        "name": check.id,
        "dimension": kind.dimension,
        "severity": check.severity,
        "description": check.doc or _description(check),
        "customProperties": _custom(check=check.kind, onFail=check.on_fail),
    }
    rule = kind.rule(check)
    return translated | ({"type": "text"} if rule is None else {"type": "library", **rule})


def _description(check: Check) -> str:
    """Return a sentence that describes the rule of a check."""
    level = kind_of(check).level
    if level == "row":
        return f"No row has {fault_text(check)}."
    if level == "watch":
        return f"It must not be that {fault_text(check)}."
    low, high = ("any" if bound is None else bound for bound in (check.min, check.max))
    return f"{check.kind} of {', '.join(check.columns) or 'the table'} is from {low} to {high}."


def _custom(**facts: Any) -> list[Facts]:  # noqa: ANN401 - any JSON value
    """Return `customProperties` for the facts that are not None."""
    return [{"property": name, "value": value} for name, value in facts.items() if value is not None]
