"""OpenLineage events of stages: inputs, outputs and check results, for external catalogs.

    stage begins ─▶ START      units that the stage carries out ─▶ tables read and written
    stage ends   ─▶ COMPLETE, or FAIL with the error: inputs, outputs, their schemas, the columns' origins, checks
        ─▶ a file with one line per event, or HTTP

Names of places and tables are stable, and without credentials.

An unreachable receiver gives a warning after a few seconds: no stage fails. The client is an extra,
``ranklake[openlineage]``.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState, set_producer
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    OutputDatasetFacet,
    RunFacet,
    column_lineage_dataset,
    error_message_run,
    output_statistics_output_dataset,
    schema_dataset,
)
from openlineage.client.generated.data_quality_assertions_dataset import Assertion, DataQualityAssertionsDatasetFacet
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport
from openlineage.client.transport.transport import Transport

from ranklake.config import ConfigError
from ranklake.insight.lineage.columns import COLUMNS, ColumnOrigin, origins
from ranklake.lake.plans.driver import SPOOL, Unit, watched_by, watcher
from ranklake.lake.rollups.own import own_rollups
from ranklake.lake.rollups.registry import select_rollups
from ranklake.redaction.place_keys import place_key
from ranklake.redaction.redact import redact
from ranklake.segments.references import read_reference

if TYPE_CHECKING:
    from ranklake.config.settings import OpenLineageSection
    from ranklake.context import Context
    from ranklake.lake.plans.driver import Watcher
    from ranklake.lake.rollups.declaration import Rollup

Done = dict[str, Any]
Result = TypeVar("Result")
_LOG: Final = logging.getLogger(__name__)
TIMEOUT_S: Final = 5.0
MOST_ASSERTIONS: Final = 1_000


class _Units:
    """Records the tables that a stage's units read and write; keeps an earlier observer."""

    def __init__(self, before: "Watcher | None") -> None:
        self._before = before
        self.reads: dict[str, None] = {}
        self.writes: dict[str, None] = {}

    def carry_out(self, unit: Unit, work: Callable[[], Result]) -> Result:
        """Run a unit, and record its tables afterwards."""
        result = work() if self._before is None else self._before.carry_out(unit, work)
        self.reads |= dict.fromkeys(unit.reads)
        if unit.table:
            (self.writes if unit.writes else self.reads)[unit.table] = None
        return result


class StageRun:
    """A run of a stage; the work sets its result."""

    def __init__(self) -> None:
        self.done: Done = {}


@contextmanager
def emitted(context: "Context", stage: str) -> Iterator[StageRun]:
    """Send the events of a stage's run in the block, if a receiver is configured.

    Raises `ConfigError` for an invalid address, and `ranklake.segments.references.SecretError` for a missing key; the
    block's errors propagate.
    """
    run = StageRun()
    section = context.config.openlineage
    if not section.url:
        yield run
        return
    events = _Events(context, stage, _transport(section))
    events.send("START")
    units = _Units(watcher())
    try:
        with watched_by(units):
            yield run
    except BaseException as error:
        events.send("FAIL", units, run.done, error)
        raise
    events.send("COMPLETE", units, run.done)


def _transport(section: "OpenLineageSection") -> Transport:
    """Return the client's transport to an address ``http(s)://…``, or a local file."""
    if section.url.startswith(("http://", "https://")):
        http = HttpConfig(url=section.url, timeout=TIMEOUT_S, retry={"total": 1})
        if section.key:
            http.auth = ApiKeyTokenProvider({"api_key": read_reference(section.key, "OpenLineage key")[0].strip()})
        return HttpTransport(http)
    if "://" in section.url.removeprefix("file://"):
        raise ConfigError("not a place for events", where="openlineage.url", hint="write a path, or http(s)://HOST")
    return FileTransport(FileConfig(log_file_path=section.url.removeprefix("file://"), append=True))


class _Events:
    """The events of one run."""

    def __init__(self, context: "Context", stage: str, transport: Transport) -> None:
        self._context, self._stage, self._transport = context, stage, transport
        self._id = str(uuid4())

    def send(
        self, kind: str, units: _Units | None = None, done: Done | None = None, error: BaseException | None = None
    ) -> None:
        """Send an event; failures are logged, not raised."""
        try:
            self._transport.emit(self._event(kind, units, done or {}, error))
        except Exception as fault:  # noqa: BLE001 - errors of a receiver must not fail the stage
            _LOG.warning("the OpenLineage event %s of %s was not sent: %s", kind, self._stage, redact(str(fault)))

    def _event(self, kind: str, units: _Units | None, done: Done, error: BaseException | None) -> RunEvent:
        set_producer(f"urn:ranklake:{version('ranklake')}")
        namespace = self._context.config.openlineage.namespace or place_key(self._context.lake_uri)
        facets: dict[str, RunFacet] = {}
        if error is not None:
            text = redact(f"{type(error).__name__}: {error}")
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(text, "Python")
        datasets = _Datasets(self._context, done)
        reads = [] if units is None else [name for name in units.reads if name not in units.writes]
        return RunEvent(
            eventTime=datetime.now(UTC).isoformat(),
            eventType=RunState[kind],
            run=Run(self._id, facets),
            job=Job(namespace, self._stage),
            inputs=[item for name in reads if (item := datasets.read(name)) is not None],
            outputs=[] if units is None else [datasets.written(name) for name in units.writes],
        )


class _Datasets:
    """Tables of the lake, and the spool, as datasets with their facets."""

    def __init__(self, context: "Context", done: Done) -> None:
        self._context, self._done = context, done
        self._contracts = context.contracts()

    @cached_property
    def _rollups(self) -> "dict[str, Rollup]":
        rollups = select_rollups(None, self._context.lake_config, own_rollups(self._contracts))
        return {each.name: each for each in rollups}

    def read(self, name: str) -> InputDataset | None:
        """Return an input dataset with its check results; None for an unconfigured spool."""
        if name == SPOOL:
            uri = self._context.config.spool.uri
            return InputDataset(*dataset_name(uri)) if uri else None
        place = dataset_name(self._context.lake_uri, name)
        return InputDataset(*place, self._assertions(name), facets=self._schema(name))

    def written(self, name: str) -> OutputDataset:
        """Return an output dataset, with column lineage if SQL computed it."""
        facets = self._schema(name) | self._column_lineage(name)
        rows = sum(each["rows"] for each in self._done.get("rollups", ()) if each["name"] == name)
        statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=rows)
        counts: dict[str, OutputDatasetFacet] = {"outputStatistics": statistics} if self._done.get("rollups") else {}
        return OutputDataset(*dataset_name(self._context.lake_uri, name), counts, facets=facets)

    def _schema(self, name: str) -> dict[str, DatasetFacet]:
        known = self._contracts.get(name)
        if known is None:
            return {}
        columns = [
            schema_dataset.SchemaDatasetFacetFields(each.name, each.type, _described(each.doc, each.class_, each.mask))
            for each in known.columns
        ]
        return {"schema": schema_dataset.SchemaDatasetFacet(columns)}

    def _column_lineage(self, name: str) -> dict[str, DatasetFacet]:
        if name not in self._rollups:
            return {}
        columns = origins(self._rollups[name], self._contracts)
        fields = {column: self._fields(origin) for column, origin in columns.items() if origin.level == COLUMNS}
        lineage = {column: column_lineage_dataset.Fields(each) for column, each in fields.items() if each}
        return {"columnLineage": column_lineage_dataset.ColumnLineageDatasetFacet(lineage)} if lineage else {}

    def _fields(self, origin: ColumnOrigin) -> list[column_lineage_dataset.InputField]:
        return [
            column_lineage_dataset.InputField(*dataset_name(self._context.lake_uri, table), column)
            for table, column in origin.sources
            if table in self._contracts
        ]

    def _assertions(self, name: str) -> dict[str, InputDatasetFacet]:
        """Return a table's failed checks, new and earlier; one passed assertion if there are none."""
        if "unsound" not in self._done:
            return {}
        results = [each for key in ("unsound", "standing") for each in self._done[key] if each["table"] == name]
        assertions = [
            Assertion(each["check_id"], success=False, column=each.get("column"), severity=each["severity"])
            for each in results[:MOST_ASSERTIONS]
        ] or [Assertion("contract", success=True)]
        return {"dataQualityAssertions": DataQualityAssertionsDatasetFacet(assertions)}


def _described(doc: str, class_: str, mask: str | None) -> str:
    flag = "" if class_ == "operational" else f" ({class_}{f', mask {mask}' if mask else ''})"
    return f"{doc}{flag}"


def dataset_name(place: str, table: str = "") -> tuple[str, str]:
    """Return namespace and name of a table, or of the place itself, as OpenLineage names them.

    >>> dataset_name("s3://bucket/lake", "steps"), dataset_name("/srv/spool")
    (('s3://bucket', 'lake/tables/steps'), ('file', '/srv/spool'))
    """
    scheme, _, rest = place_key(place).partition("://")
    host, _, path = rest.partition("/")
    below = f"/tables/{table}" if table else ""
    return ("file", f"/{path}{below}") if scheme == "file" else (f"{scheme}://{host}", f"{path}{below}".lstrip("/"))
