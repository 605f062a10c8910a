"""The process that builds a project of Great Expectations: ``python -m ranklake.quality.export.build FOLDER``.

Opening a project changes the current project of Great Expectations, which checks use. So a separate process does it.
Facts come as JSON on standard input.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from ranklake.quality.engine import great_expectations, silence

SOURCE: Final = "ranklake"
_BATCH: Final = "partition"


def build(folder: str, facts: Mapping[str, Any]) -> dict[str, list[str]]:
    """Build a project in an empty folder: source, suites, validation definitions, checkpoints, results, pages.

    Returns, for each table, the ids of checks that Great Expectations refuses as expectations.
    """
    refused: dict[str, list[str]] = {}
    gx = great_expectations()
    context = gx.get_context(mode="file", project_root_dir=folder)
    source = context.data_sources.add_pandas(SOURCE)
    for table in facts["tables"]:
        asset = source.add_dataframe_asset(table["table"])
        batches = asset.add_batch_definition_whole_dataframe(_BATCH)
        ready, invalid = _domain_objects(gx, table["expectations"])
        refused[table["table"]] = invalid
        suite = gx.ExpectationSuite(name=table["table"], meta=_meta(table, invalid))
        for expectation in ready:
            suite.expectations.append(expectation)
        suite = context.suites.add(suite)
        validation = gx.ValidationDefinition(name=table["table"], data=batches, suite=suite)
        validation = context.validation_definitions.add(validation)
        context.checkpoints.add(gx.Checkpoint(name=table["table"], validation_definitions=[validation]))
        for result in table["results"]:
            _add_result(gx, context, table["table"], result, invalid)
    context.build_data_docs()
    return refused


def _domain_objects(gx: Any, configs: Sequence[Mapping[str, Any]]) -> tuple[list[Any], list[str]]:  # noqa: ANN401
    """Return the expectations, and the ids of users' expectations with invalid parameters."""
    ready, invalid = [], []
    for config in configs:
        try:
            ready.append(_configure(gx, config).to_domain_obj())
        except Exception:  # noqa: BLE001 - other expectations must still be exported
            invalid.append(config["meta"]["check_id"])
    return ready, invalid


def _meta(table: Mapping[str, Any], invalid: Sequence[str]) -> dict[str, Any]:
    notes = [table["summary"]]
    unexpressed = sorted([*table["unexpressed"], *invalid])
    if unexpressed:
        notes.append(f"not expressed in Great Expectations, but in results: {', '.join(unexpressed)}")
    return {"table": table["table"], "ranklake_suite": table["suite"], "notes": {"format": "string", "content": notes}}


def _configure(gx: Any, config: Mapping[str, Any]) -> Any:  # noqa: ANN401 - their object
    return gx.expectations.expectation_configuration.ExpectationConfiguration(**config)


def _add_result(
    gx: Any,  # noqa: ANN401 - their module
    context: Any,  # noqa: ANN401
    table: str,
    result: Mapping[str, Any],
    invalid: Sequence[str],
) -> None:
    """Store the results of one check run on one date."""
    outcome = gx.core.expectation_validation_result
    name = gx.data_context.types.resource_identifiers
    run = gx.core.run_identifier.RunIdentifier(result["date"], datetime.fromisoformat(result["ts"]))
    checks = [
        outcome.ExpectationValidationResult(
            success=check["success"],
            expectation_config=_configure(gx, _result_config(check, invalid)),
            result=_counts(check),
            exception_info={
                "raised_exception": bool(check["error"]),
                "exception_message": check["error"] or None,
                "exception_traceback": "" if check["error"] else None,
            },
        )
        for check in result["checks"]
    ]
    successes = sum(check.success for check in checks)
    statistics = {
        "evaluated_expectations": len(checks),
        "successful_expectations": successes,
        "unsuccessful_expectations": len(checks) - successes,
        "success_percent": 100 * successes / len(checks),
    }
    batch = {
        "datasource_name": SOURCE,
        "data_connector_name": "fluent",
        "data_asset_name": table,
        "batch_identifiers": {"date": result["date"]},
    }
    meta = {
        "run_id": run.to_json_dict(),
        "great_expectations_version": gx.__version__,
        "active_batch_definition": batch,
        "check_run": result["check_run"],
        "files_sha256": result["files_sha256"],
    }
    whole = outcome.ExpectationSuiteValidationResult(successes == len(checks), checks, table, {}, statistics, meta)
    key = name.ValidationResultIdentifier(name.ExpectationSuiteIdentifier(table), run, f"{table}-{result['date']}")
    context.validation_results_store.set(key, whole)


def _result_config(check: Mapping[str, Any], invalid: Sequence[str]) -> dict[str, Any]:
    """Return the expectation of a result; for a refused check, one on a column that tells whether rows pass."""
    refused = check["config"]["meta"]["check_id"] in invalid
    return {**check["config"], **(check["otherwise"] if refused else {})}


def _counts(check: Mapping[str, Any]) -> dict[str, Any]:
    checked, failed = check["checked"], check["failed"]
    if checked is None or failed is None:
        return {}
    share = 100 * failed / checked if checked else 0.0
    counts = {"element_count": checked, "unexpected_count": failed, "unexpected_percent": share}
    return {**counts, "partial_unexpected_list": []}


if __name__ == "__main__":
    with silence():
        result = build(sys.argv[1], json.load(sys.stdin))
    sys.stdout.write(f"\n{json.dumps(result)}\n")
