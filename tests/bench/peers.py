"""The peers: each a function that sets one up to write to a local folder and returns its cases, or why there are none.

Nothing in here reaches the network: every peer writes to local files or to memory.
"""

import contextlib
import mmap
import os
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from capture_bench import Case

Cases = tuple[list["Case"], dict[str, str]]

TENSORBOARD: Final = "TensorBoard add_scalar"
TENSORBOARD_TEN: Final = "TensorBoard step, ten values"
TRACKIO_TEN: Final = "trackio step, ten values"
WANDB: Final = "wandb offline log"
WANDB_TEN: Final = "wandb offline log, 10 keys"
MLFLOW: Final = "MLflow log_metric"
MLFLOW_ASYNC: Final = "MLflow log_metric, asynchronous"
OTEL_COUNTER: Final = "OpenTelemetry counter.add"
OTEL_SPAN: Final = "OpenTelemetry span"
NAMES: Final = (
    TENSORBOARD,
    TENSORBOARD_TEN,
    TRACKIO_TEN,
    WANDB,
    WANDB_TEN,
    MLFLOW,
    MLFLOW_ASYNC,
    OTEL_COUNTER,
    OTEL_SPAN,
)

# Set before a peer is imported: no network, no usage reports, no chatter.
QUIET: Final = {
    "DO_NOT_TRACK": "1",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "OTEL_SDK_DISABLED": "false",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_TRACES_EXPORTER": "none",
    "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB__DISABLE_STATS": "true",
    "WANDB__DISABLE_META": "true",
}

_SLOT: Final = struct.Struct("<qqdII")
# What ranklake's step measures, measured by hand: the durations of a step and of two phases in it.
_TIMED: Final = """
start = now()
forward = now() - start
backward = now() - start - forward
whole = now() - start
"""
_REST_S: Final = 0.002
_BARE_BYTES: Final = 1 << 22
_KEPT: Final = 1 << 17


def reason(error: BaseException) -> str:
    """Return why a peer is not there, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


def bare_cases(case: type["Case"], name: str, folder: Path) -> list["Case"]:
    """Return the least that any recorder must do: a slot in a mapped file, and an append in memory."""
    with (folder / "bare").open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, _BARE_BYTES)
        view = memoryview(mmap.mmap(file.fileno(), _BARE_BYTES))
    view[:] = bytes(_BARE_BYTES)  # no page faults later
    slot = {"pack": _SLOT.pack_into, "view": view, "now": time.monotonic_ns, "value": 0.25, "wrap": _BARE_BYTES - 1}
    append = {"append": deque(maxlen=_KEPT).append, "now": time.monotonic_ns, "value": 0.25}
    write = "pack(view, at, now(), i, value, 7, 1)\nat = at + 32 & wrap"
    return [case(name, write, slot, setup="at = 0"), case("deque.append", "append((now(), i, value))", append)]


def tensorboard(case: type["Case"], folder: Path, ends: contextlib.ExitStack) -> Cases:
    """Write event files with tensorboardX."""
    try:
        from tensorboardX import SummaryWriter

        writer = SummaryWriter(str(folder / "tensorboard"))
    except Exception as error:  # noqa: BLE001 - whatever a peer raises, it is not there
        return [], {TENSORBOARD: reason(error)}
    ends.callback(writer.close)
    names = {"add_scalar": writer.add_scalar, "value": 0.25, "now": time.perf_counter}
    values = [f'add_scalar("bench/m{n}", value, i)' for n in range(10)]
    values += [f'add_scalar("time/{name}", {name}, i)' for name in ("whole", "forward", "backward")]
    ten = _TIMED + "\n".join(values)
    return [
        case(TENSORBOARD, 'add_scalar("bench/loss", value, i)', names, settle=writer.flush),
        *stepped(case, TENSORBOARD_TEN, ten, names, writer.flush),
    ], {}


def trackio(case: type["Case"], folder: Path, ends: contextlib.ExitStack) -> Cases:
    """Write to trackio's store in a local SQLite file."""
    os.environ["TRACKIO_DIR"] = str(folder / "trackio")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            import trackio as peer

            peer.init(project="bench", name="bench", embed=False, auto_log_cpu=False, auto_log_gpu=False)
    except Exception as error:  # noqa: BLE001 - whatever a peer raises, it is not there
        return [], {TRACKIO_TEN: reason(error)}

    def finish() -> None:
        with contextlib.redirect_stdout(sys.stderr):
            peer.finish()

    ends.callback(finish)
    values = ", ".join(f'"bench/m{n}": value' for n in range(10))
    durations = ", ".join(f'"time/{name}": {name}' for name in ("whole", "forward", "backward"))
    names = {"log": peer.log, "value": 0.25, "now": time.perf_counter}
    return stepped(case, TRACKIO_TEN, f"{_TIMED}log({{{values}, {durations}}}, step=i)", names), {}


def stepped(
    case: type["Case"],
    name: str,
    statement: str,
    names: dict[str, object],
    settle: Callable[[], object] = lambda: None,
) -> list["Case"]:
    """Return a step's case, and the same after a rest."""
    return [
        case(name, statement, names, settle=settle),
        case(f"{name}, rested", statement, names, settle=settle, rest_s=_REST_S),
    ]


def wandb(case: type["Case"], folder: Path, ends: contextlib.ExitStack) -> Cases:
    """Write wandb's offline file."""
    try:
        import wandb as peer

        run = peer.init(mode="offline", project="bench", dir=str(folder), settings=peer.Settings(silent=True))
    except Exception as error:  # noqa: BLE001 - whatever a peer raises, it is not there
        return [], dict.fromkeys((WANDB, WANDB_TEN), reason(error))
    ends.callback(run.finish)
    names = {"log": run.log, "value": 0.25}
    ten = ", ".join(f'"bench/m{n}": value' for n in range(10))
    return [case(WANDB, 'log({"bench/loss": value})', names), case(WANDB_TEN, f"log({{{ten}}})", names)], {}


def mlflow(case: type["Case"], folder: Path, ends: contextlib.ExitStack) -> Cases:
    """Write to MLflow's store in a local SQLite file, waiting for it and not."""
    try:
        import mlflow as peer

        peer.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
        peer.start_run(experiment_id=peer.create_experiment("bench", artifact_location=str(folder / "artifacts")))
    except Exception as error:  # noqa: BLE001 - whatever a peer raises, it is not there
        return [], dict.fromkeys((MLFLOW, MLFLOW_ASYNC), reason(error))
    ends.callback(peer.end_run)
    names = {"log_metric": peer.log_metric, "value": 0.25}
    later = 'log_metric("bench/later", value, step=i, synchronous=False)'
    return [
        case(MLFLOW, 'log_metric("bench/loss", value, step=i)', names),
        case(MLFLOW_ASYNC, later, names, settle=peer.flush_async_logging),
    ], {}


def opentelemetry(case: type["Case"], folder: Path, ends: contextlib.ExitStack) -> Cases:
    """Aggregate a counter in memory, and throw finished spans away in the exporter's own thread."""
    try:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

        class Discard(SpanExporter):
            """Exports nowhere."""

            def export(self, spans: object) -> SpanExportResult:
                return SpanExportResult.SUCCESS

        meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(BatchSpanProcessor(Discard(), max_queue_size=1 << 16))
        counter = meters.get_meter("bench").create_counter("tokens")
        tracer = tracers.get_tracer("bench")
    except Exception as error:  # noqa: BLE001 - whatever a peer raises, it is not there
        return [], dict.fromkeys((OTEL_COUNTER, OTEL_SPAN), reason(error))
    ends.callback(meters.shutdown)
    ends.callback(tracers.shutdown)
    span = {"span": tracer.start_as_current_span}
    return [
        case(OTEL_COUNTER, "add(1, labels)", {"add": counter.add, "labels": {"rank": "0"}}),
        case(OTEL_SPAN, 'with span("forward"):\n    pass', span, settle=tracers.force_flush),
    ], {}


MAKERS: Final[tuple[Callable[..., Cases], ...]] = (tensorboard, trackio, wandb, mlflow, opentelemetry)
