"""Great Expectations as the engine that checks rows, and the pandas frame that it validates.

The import takes seconds. It happens when the first `Judge` is made, in `great_expectations` only. The context is in
memory: no files, no project folder, no network. For classified columns only yes or no is requested, because any other
result format copies values. Great Expectations reports a crashed metric like a failed one; here it becomes an error.

The frame has NumPy columns, which are checked ten times faster than Arrow columns. Integers are compared as floats: by
pandas in columns with NULL, and by Great Expectations, whose bounds are floats. Floats hold integers up to 2⁵³ exactly,
so larger integers are passed as Python objects.
"""

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.quality.forms import FORMS

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd  # type: ignore[import-untyped]

    from ranklake.lake.contracts.checks.kind import Ranges
    from ranklake.lake.contracts.model import Contract
    from ranklake.quality.suite import Expectation

EXACT: Final = 2**53


def frame(rows: pa.Table, expectations: "Iterable[Expectation]", ranges: "Ranges") -> "pd.DataFrame":
    """Return a frame of only those columns that the given row expectations need."""
    import pandas as pd

    columns: dict[str, pa.ChunkedArray] = {}
    compared: set[str] = set()
    for expectation in expectations:
        check = expectation.check
        form = FORMS[check.kind]
        columns |= form.columns(check, rows, ranges)
        compared |= set(check.columns) if form.compares else set()
    # Without copy=False pandas would gather the columns in one block.
    values = {name: values_of(column, compared=name in compared) for name, column in columns.items()}
    return pd.DataFrame(values, copy=False)


def values_of(column: pa.ChunkedArray, *, compared: bool) -> Any:  # noqa: ANN401 - a NumPy array or a pandas Series
    """Return a column for pandas. If `compared`, integers that a float cannot hold become Python objects."""
    kind = column.type
    if pa.types.is_integer(kind) and compared and not _exact(column):
        return np.array(column.to_pylist(), dtype=object)
    # Great Expectations compares int64 and float64 by NumPy, everything else value by value.
    if pa.types.is_int32(kind):
        return column.cast(pa.int64()).to_numpy()
    if pa.types.is_float32(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.float64()).to_numpy()
    if pa.types.is_date(kind):
        return column.cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")).to_pandas()
    if pa.types.is_string(kind) or pa.types.is_timestamp(kind):
        return column.to_pandas()
    return column.to_numpy()


def _exact(column: pa.ChunkedArray) -> bool:
    ends = pc.min_max(column).as_py()
    return ends["min"] is None or (ends["min"] >= -EXACT and ends["max"] <= EXACT)


_SHOWN = 3
_MESSAGE = 200
_CLASS = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit))\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of one expectation on one frame.

    Attributes
    ----------
    success
        Whether all rows passed; None if the check could not be computed.
    checked, failed
        Number of rows checked and failed; None for classified columns, where only `success` is requested.
    shown
        A few failing values, only of operational numbers.
    error
        Why the check could not be computed; without details for classified columns.
    """

    success: bool | None
    checked: int | None = None
    failed: int | None = None
    shown: tuple[object, ...] = ()
    error: str = ""


@cache
def gx_version() -> str:
    """Return the installed version of Great Expectations without importing it."""
    return version("great_expectations")


def judge(
    contract: "Contract", rows: object, expectations: "Sequence[Expectation]", *, classified: bool
) -> "list[Verdict]":
    """Validate rows with the `Judge` of this process. The first call makes it, which takes seconds."""
    return _judge_of_process()(contract, rows, expectations, classified=classified)


@cache
def _judge_of_process() -> "Judge":
    return Judge()


def great_expectations() -> Any:  # noqa: ANN401 - their module
    """Import Great Expectations and return the module. No other function imports it."""
    with silence():
        import great_expectations as gx
    return gx


def in_memory() -> tuple[Any, Any]:
    """Import Great Expectations; return it, and a batch definition for any frame, in a context in memory."""
    gx = great_expectations()
    base = gx.data_context.types.base
    with silence():
        config = base.DataContextConfig(
            # the default creates a temporary folder for a site that is never built, and does not delete it
            store_backend_defaults=base.InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
            progress_bars=base.ProgressBarsConfig(globally=False),
            analytics_enabled=False,
        )
        context = gx.get_context(mode="ephemeral", project_config=config)
    asset = context.data_sources.add_pandas("partition").add_dataframe_asset("rows")
    return gx, asset.add_batch_definition_whole_dataframe("all")


class Judge:
    """Validates frames. Calls from several threads run one after another."""

    def __init__(self) -> None:
        self._gx, self._batches = in_memory()
        self._lock = Lock()

    def __call__(
        self, contract: "Contract", rows: object, expectations: "Sequence[Expectation]", *, classified: bool
    ) -> list[Verdict]:
        """Return one verdict per expectation on a pandas frame, in their order. Errors of a check do not raise."""
        with self._lock:
            return self._evaluate_expectations(contract, rows, expectations, classified=classified)

    def _evaluate_expectations(
        self, contract: "Contract", rows: object, expectations: "Sequence[Expectation]", *, classified: bool
    ) -> list[Verdict]:
        verdicts: dict[int, Verdict] = {}
        ready = []
        for index, expectation in enumerate(expectations):
            try:
                ready.append(self._configure_expectation(contract, expectation, index))
            except Exception as error:  # noqa: BLE001 - a bound that does not suit its column must not stop the others
                verdicts[index] = _error_result(type(error).__name__)
        shown: Any = "BOOLEAN_ONLY" if classified else {"result_format": "BASIC", "partial_unexpected_count": _SHOWN}
        try:
            with silence():
                batch = self._batches.get_batch(batch_parameters={"dataframe": rows})
                suite = self._gx.ExpectationSuite(name="suite", expectations=ready)
                results = batch.validate(suite, result_format=shown).results if ready else []
        except Exception as error:  # noqa: BLE001 - any error is one of the check, not of the data
            verdict = _error_result(type(error).__name__)
            return [verdicts.get(index, verdict) for index in range(len(expectations))]
        for result in results:
            assert result.expectation_config is not None
            index = (result.expectation_config.meta or {})["index"]
            verdicts[index] = _verdict(result, expectations[index], classified=classified)
        return [verdicts[index] for index in range(len(expectations))]

    def _configure_expectation(self, contract: "Contract", expectation: "Expectation", index: int) -> Any:  # noqa: ANN401 - their object
        check = expectation.check
        kind = getattr(self._gx.expectations, expectation.kind)
        kwargs = FORMS[check.kind].kwargs(check, contract.column(check.columns[0]))
        return kind(**kwargs, meta={"index": index})


def _verdict(result: Any, expectation: "Expectation", *, classified: bool) -> Verdict:  # noqa: ANN401 - their object
    error = error_of(result.exception_info, classified=classified)
    if error:
        return Verdict(None, error=error)
    if classified:
        return Verdict(bool(result.success))
    facts = result.result
    checked = int(facts["element_count"]) - int(facts.get("missing_count") or 0)
    failed = int(facts["unexpected_count"])
    shown = tuple(facts.get("partial_unexpected_list") or ()) if expectation.numeric else ()
    return Verdict(failed == 0, checked, failed, shown)


def error_of(info: dict[str, Any], *, classified: bool) -> str:
    """Return the error in exception info, which is flat or has an entry per metric; empty if there is none."""
    per_metric = [entry for entry in info.values() if isinstance(entry, dict)]
    raised = next((entry for entry in [info, *per_metric] if entry.get("raised_exception")), None)
    if raised is None:
        return ""
    # the first error of the chain is the cause; Great Expectations wraps it
    match = _CLASS.search(str(raised.get("exception_traceback", "")))
    kind = match[1].rpartition(".")[2] if match else ""
    return error_text(kind, str(raised.get("exception_message", "")), classified=classified)


def error_text(kind: str, message: str, *, classified: bool) -> str:
    """Return an error's class in words, and its message unless that may quote a classified value."""
    text = f"could not be computed ({kind or 'no reason given'})"
    if message and not classified:
        text += f": {' '.join(message.split())[:_MESSAGE]}"
    return text


def _error_result(kind: str) -> Verdict:
    return Verdict(None, error=error_text(kind, "", classified=True))


@contextmanager
def silence() -> Iterator[None]:
    """Suppress log and warnings of Great Expectations: both may quote values."""
    logger = logging.getLogger("great_expectations")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
