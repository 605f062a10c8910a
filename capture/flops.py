"""FLOPs: counted once on the real step, and the peak of a CPU measured, because no table has it.

torch is used only if the caller has imported it.
"""

import importlib
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from ranklake.capture.run import Run

FLOPS_PER_STEP: Final = "model/flops_per_step"
FLOPS_PER_TOKEN: Final = "model/flops_per_token"  # noqa: S105 - a metric's name
PEAK_MEASURED: Final = "device/peak_flops_measured"
_SIZES: Final = (512, 1024, 2048)
_TRIES: Final = 4
_ENOUGH_S: Final = 1.5


class FlopCount:
    """Context in which one real training step runs, forward and backward, on this rank.

    torch's FlopCounterMode sees every matrix product that is dispatched in it and counts a multiplication and an
    addition as two. The counted step is slower than others. At the end the scalars model/flops_per_step and, if
    `tokens` is given, model/flops_per_token are recorded; after an exception, nothing.

    Attributes
    ----------
    flops
        Counted FLOPs; None before the end, and if there is no torch.
    """

    def __init__(self, run: "Run", tokens: object) -> None:
        self.flops: int | None = None
        self._run, self._tokens = run, tokens
        self._mode: Any = None

    def __enter__(self) -> Self:
        try:
            mode = _flop_counter()
            if mode is None:
                self._run.event("flops_not_counted", message="torch is not imported", severity="warning")
            else:
                mode.__enter__()
                self._mode = mode
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._run.trouble("counting FLOPs", error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        mode, self._mode = self._mode, None
        if mode is None:
            return
        try:
            mode.__exit__(kind, error, trace)
            if error is None:
                self.flops = int(mode.get_total_flops())
                self._record(self.flops)
        except Exception as trouble:  # noqa: BLE001 - telemetry never raises into training
            self._run.trouble("counting FLOPs", trouble)

    def _record(self, flops: int) -> None:
        self._run.scalar(FLOPS_PER_STEP).add(flops)
        if self._tokens is not None:
            tokens = float(self._tokens)  # type: ignore[arg-type]  # a bad one raises and is told
            if tokens > 0:
                self._run.scalar(FLOPS_PER_TOKEN, kind="ratio").add(flops / tokens)


def _flop_counter() -> Any:  # noqa: ANN401 - torch is no dependency
    if "torch" not in sys.modules:
        return None
    return importlib.import_module("torch.utils.flop_counter").FlopCounterMode(display=False)


def measure_cpu_peak() -> float | None:
    """Return FLOP/s of the best of several float32 matrix products, with torch's threads as they are set.

    None without torch, or where it computes on another device: for those a sourced table has the peak. Takes about
    two seconds.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or torch.cuda.is_available():
        return None
    best = 0.0
    began = time.perf_counter()
    own = torch.Generator()  # training must draw the same numbers with and without telemetry
    with torch.no_grad():
        for size in _SIZES:
            left, right = (torch.rand(size, size, dtype=torch.float32, generator=own) for _ in range(2))
            out = torch.empty(size, size, dtype=torch.float32)
            for _ in range(_TRIES):
                start = time.perf_counter()
                torch.mm(left, right, out=out)
                best = max(best, 2 * size**3 / (time.perf_counter() - start))
            if time.perf_counter() - began > _ENOUGH_S:
                break
    return best
