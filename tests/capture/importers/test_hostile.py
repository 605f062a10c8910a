"""Bytes that no tool wrote: each importer takes them, refuses rows, or says one line; none ends in a traceback."""

import json
import struct
from contextlib import suppress

import pytest
from foreign_bytes import log, record, sub, varint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from importing import ask, imported

from ranklake.capture.importers.imports import import_files
from ranklake.errors import RanklakeError

BEGIN = 1_700_000_000.25
HEAD = record(b"\x09" + struct.pack("<d", BEGIN) + sub(3, b"brain.Event:2"))
FAST = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
WHOLE = st.one_of(st.integers(0, 9), st.sampled_from([1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]))
FIELDS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 10, 16, 17, 18, 21])
TEXTS = st.sampled_from([b"", b"train/loss", b"\xff\xfe", b'{"a":' * 3, b"[" * 5_000 + b"]" * 5_000, b"1e999", b"NaN"])
SCALARS = "table: scalars\ntime: {column: t, format: epoch_s}\ncolumns: {metric: m, step: s, value: v}\n"


def wire(number, value):
    """Return a field: of a whole number by its size, of bytes or of a message as such."""
    kind, content = value
    if kind == "varint":
        return varint(number << 3) + varint(content)
    if kind == "fixed32":
        return varint(number << 3 | 5) + struct.pack("<I", content & 0xFFFFFFFF)
    if kind == "fixed64":
        return varint(number << 3 | 1) + struct.pack("<Q", content)
    return sub(number, content)


LEAVES = st.one_of(
    st.tuples(st.sampled_from(["varint", "fixed32", "fixed64"]), WHOLE), st.tuples(st.just("bytes"), TEXTS),
)  # fmt: skip
MESSAGES = st.recursive(
    LEAVES,
    lambda inner: st.lists(st.tuples(FIELDS, inner), max_size=4).map(
        lambda parts: ("bytes", b"".join(wire(number, value) for number, value in parts))
    ),
    max_leaves=12,
)
RECORDS = st.lists(st.lists(st.tuples(FIELDS, MESSAGES), max_size=5), min_size=1, max_size=3)
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.floats(), st.sampled_from(["", "x", "\ud800", "NaN", "-1e400", "1:00:00"]),
        st.sampled_from([0, -1, 1 << 31, 1 << 63, 1 << 70, 10**400]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "args", "v"]), inner)),
    max_leaves=5,
)  # fmt: skip
EVENTS = st.lists(
    st.dictionaries(st.sampled_from(["ph", "name", "cat", "ts", "dur", "args", "tid", "pid"]), JSON)
    | st.fixed_dictionaries({"ph": st.just("X"), "name": JSON, "ts": JSON, "dur": JSON, "args": JSON})
    | JSON,
    max_size=4,
)
NUMBERS = st.sampled_from(["0", "-1", "1e999", "nan", "inf", "9" * 400, "1.5", "1" * 18, "-0.0", "1e-999"])


NAMES = {b"_step": b"0", b"_timestamp": b"1700000000.5", b"loss": b"2.5"}


def written(place, raw):
    place.write_bytes(raw)
    return place


def taken(kind, place, raw, **options):
    """Import bytes; return what was imported, or the line of a refusal."""
    try:
        return import_files(kind, [str(written(place, raw))], str(place) + "-spool", **options)
    except RanklakeError as error:
        (line,) = str(error).splitlines()
        return line


@FAST
@given(RECORDS)
def test_fields_of_any_wire_type(tmp_path_factory, records):
    """Messages whose fields are of other types than their names have."""
    place = tmp_path_factory.mktemp("wire")
    raw = [b"".join(wire(number, value) for number, value in fields) for fields in records]
    taken("tensorboard", place / "events.out.tfevents.1", HEAD + b"".join(record(one) for one in raw))
    taken("wandb", place / "run.wandb", log(*raw))


def test_scalars_of_other_wire_types(tmp_path):
    """A number that is written as a whole one, or as eight bytes, is no scalar; its neighbours are.

    Of an event without a time each value is refused, whatever it is.
    """
    wrong = [varint(2 << 3) + varint((1 << 64) - 1), varint(2 << 3 | 1) + b"\xff" * 8, sub(2, b"word")]
    values = [sub(1, b"loss") + one for one in [*wrong, b"\x15" + struct.pack("<f", 2.5)]]
    summary = sub(5, b"".join(sub(1, value) for value in values))
    times = [b"\x09" + struct.pack("<d", BEGIN), varint(1 << 3) + varint(5), sub(1, b"then")]
    raw = HEAD + b"".join(record(at + summary) for at in times)
    done = taken("tensorboard", tmp_path / "events.out.tfevents.1", raw)
    assert done.rows == {"runs": 1, "scalars": 1}
    assert done.refused == {"the event has no time, or its name is too long": 2 * len(values)}


def test_a_configuration_that_is_nested_too_deeply(lake, spool, tmp_path):
    """It is left out and counted; the rest of it stays."""
    deep = sub(1, sub(1, b"deep") + sub(16, b"[" * 900 + b"1" + b"]" * 900))
    shallow = sub(1, sub(1, b"lr") + sub(16, b"0.5"))
    history = sub(2, b"".join(sub(1, sub(1, name) + sub(16, value)) for name, value in NAMES.items()))
    done = imported(
        lake, spool, "wandb", written(tmp_path / "run.wandb", log(sub(5, deep + shallow), history)), run="r"
    )
    assert (done.rows["scalars"], done.refused) == (1, {})
    (row,) = ask(lake, "SELECT config, labels FROM runs")
    assert json.loads(row["config"]) == {"lr": 0.5}
    assert '"not_imported":"1 values that are not numbers' in row["labels"]


@FAST
@given(EVENTS, JSON)
def test_traces_of_anything(tmp_path_factory, events, about):
    """Traces whose events hold whatever JSON does, and Python's writer beyond it."""
    place = tmp_path_factory.mktemp("trace")
    taken("kineto", place / "a.json", json.dumps({"distributedInfo": about, "traceEvents": events}).encode())
    answer = {
        "status": "success",
        "data": {"resultType": "matrix", "result": [{"metric": about, "values": events}, about]},
    }
    taken("prometheus", place / "b.json", json.dumps(answer).encode())


@FAST
@given(st.lists(st.fixed_dictionaries({"t": JSON, "m": JSON, "s": JSON, "v": JSON}), min_size=1, max_size=4))
def test_tables_of_anything(tmp_path_factory, rows):
    """JSON lines and a log_history of whatever JSON holds."""
    place = tmp_path_factory.mktemp("table")
    (place / "m.yaml").write_text(SCALARS)
    taken("table", place / "a.jsonl", "\n".join(map(json.dumps, rows)).encode(), mapping=str(place / "m.yaml"))
    taken(
        "table", place / "b.json", json.dumps({"log_history": rows}, indent=1).encode(), mapping=str(place / "m.yaml")
    )


@FAST
@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=4))
def test_logs_of_any_number(tmp_path_factory, numbers):
    """Lines of logs and of pages with numbers that no trainer prints."""
    place = tmp_path_factory.mktemp("log")
    forms = {
        "megatron": [
            "iteration {0}/ {1} | consumed samples: {2} | elapsed time per iteration (ms): {1} | grad norm: {0} |",
            "[2026-01-01 10:00:00,1] [x] [Rank 0] step={0}, skipped={1}, lr=[{2}, 1]",
            "[2026-01-01 10:00:00,1] [timer.py:1:stop] epoch=0/micro_step=1/global_step={0}, CurrSamplesPerSec={1}, x",
            "Training epoch 0, iteration {0}/{1} | global_step: {0} | lr: {2} | train_step_timing in s: {1}",
            "steps: {0} loss: {1} iter time (s): {2} samples/sec: {1}",
            " validation loss at iteration {0} | lm loss value: {1} |",
        ],
        "torchtitan": ["2026-01-01 10:00:0{3},5 step: {0}  loss: {1}  memory: {2}GiB(1%)  tps: {1}"],
        "prometheus": ["a {0} {1}", 'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-1"}} {2} {1}'],
    }
    for kind, lines in forms.items():
        text = "\n".join(line.format(*row, at) for at, row in enumerate(numbers) for line in lines)
        taken(kind, place / kind, text.encode())


ATTRIBUTES = [{"key": "step", "value": {"intValue": "3"}}, {"key": "a", "value": {"arrayValue": {"values": []}}}]
OTLP = {
    "resourceSpans": [{"resource": {"attributes": ATTRIBUTES}, "scopeSpans": [{"scope": {"name": "s"}, "spans": [
        {"name": "x", "kind": 2, "traceId": "a" * 32, "spanId": "b" * 16, "parentSpanId": "", "attributes": ATTRIBUTES,
         "startTimeUnixNano": "1700000000000000000", "endTimeUnixNano": "1700000000000000001", "status": {"code": 2},
         "events": [{"name": "e", "attributes": ATTRIBUTES}], "links": [{"traceId": "a"}]}]}]}],
    "resourceMetrics": [{"scopeMetrics": [{"metrics": [
        {"name": "m", "sum": {"isMonotonic": True, "dataPoints": [{"timeUnixNano": 1, "asInt": "3", "flags": 0}]}},
        {"name": "h", "histogram": {"dataPoints": [{"timeUnixNano": 1, "count": 2, "sum": 1.5, "min": 0.5,
         "explicitBounds": [1.0], "bucketCounts": ["1", "1"]}]}},
        {"name": "p", "exponentialHistogram": {"dataPoints": [{"timeUnixNano": 1, "count": 2, "scale": 3,
         "zeroCount": 1, "positive": {"offset": -4, "bucketCounts": ["0", "1"]}}]}},
        {"name": "q", "summary": {"dataPoints": [{"timeUnixNano": 1, "count": 2, "quantileValues": [{"value": 1}]}]}},
    ]}]}],
    "resourceLogs": [{"scopeLogs": [{"logRecords": [{"timeUnixNano": 1, "severityNumber": 9, "traceId": "",
     "body": {"stringValue": "x"}, "attributes": ATTRIBUTES}]}]}],
}  # fmt: skip


def places(value, path=()):
    """Yield the path of each value in a JSON value."""
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


PLACES = list(places(OTLP))[1:]


@FAST
@given(st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=1, max_size=4))
def test_otlp(tmp_path, changes):
    """Whatever stands in place of a value of OTLP's; what is converted is stored."""
    message = json.loads(json.dumps(OTLP))
    for path, value in changes:
        parent = message
        with suppress(LookupError, TypeError):
            for key in path[:-1]:
                parent = parent[key]
            parent[path[-1]] = value
    taken("otlp", tmp_path / "otlp.jsonl", json.dumps(message).encode())


@pytest.mark.parametrize(
    "kind",
    [
        "mlperf",
        "sacct",
        "megatron",
        "torchtitan",
        "prometheus",
        "kineto",
        "tensorboard",
        "wandb",
        "nccl",
        "nccl_inspector",
        "nccl_ras",
        "nvidia_smi",
        "pbs",
        "sge",
        "lsf",
        "swf",
        "kubernetes",
        "otlp",
    ],
)
def test_noise(tmp_path, kind):
    """Bytes of no format are one line."""
    for number, raw in enumerate((bytes(range(256)) * 9, b"\x00" * 99, b"[" * 99_999, b"{" * 99_999, b"0: " * 99_999)):
        taken(kind, tmp_path / str(number), raw)
