"""FLOPs: count the FLOPs of a real step with torch, and measure the peak of a CPU, which no table lists.

torch is used only if the caller has imported it.
"""

import importlib
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from ranklake.capture.common.gaps import BAD_VALUE
from ranklake.capture.common.values import BadValueError, DeviceValueError, number, repr_of
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.steps.events import Events

Shape = Sequence[int]

FLOPS_PER_STEP: Final = "model/flops_per_step"
HARDWARE_FLOPS_PER_STEP: Final = "model/hardware_flops_per_step"
FLOPS_PER_TOKEN: Final = "model/flops_per_token"  # noqa: S105 - a metric's name
PEAK_MEASURED: Final = "device/peak_flops_measured"
_ATTENTION_KERNELS: Final = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
_FREE_SPACES: Final = frozenset({"aten", "prim", "prims", "c10d", "_c10d_functional", "fsdp", "profiler"})
_PRODUCTS: Final = ("rnn", "lstm", "gru", "int_mm", "int4pack", "int8pack", "grouped_mm", "trilinear", "sparse_mm")
"""Parts of the names of torch's operators that multiply matrices and have no formula."""
_SIZES: Final = (512, 1024, 2048)
_TRIES: Final = 4
_ENOUGH_S: Final = 1.5


class FlopCount:
    """Context for one real training step, forward and backward, whose FLOPs are counted on this rank.

    torch's FlopCounterMode sees every matrix product dispatched in the context, and counts a multiplication and an
    addition as two FLOPs. Fused attention is counted with our own formulas; see `attention_forward`. The counted step
    is slower than others. At the end, the metrics model/flops_per_step, model/hardware_flops_per_step and, if `tokens`
    is given, model/flops_per_token are recorded; after an exception, none. FLOPs that activation checkpointing repeats
    in the backward pass count only for the hardware. If the step has an operator without a formula (custom, quantized
    or fused recurrent ones), the count would be too small by an unknown amount. Then no metric is recorded, and an
    event ``flops_not_counted`` gives the reason.

    Parameters
    ----------
    add
        Records a value of a metric by its name.
    tokens
        Tokens of the step; None if unknown.

    Attributes
    ----------
    flops
        FLOPs without recomputed activations; None before the end, and if they cannot be counted.
    hardware_flops
        FLOPs including recomputed activations; also None if torch does not report what runs in a backward pass.
    """

    def __init__(self, sink: Sink, events: Events, add: Callable[[str, float], None], tokens: object) -> None:
        self.flops: int | None = None
        self.hardware_flops: int | None = None
        self._sink, self._events, self._add, self._tokens = sink, events, add, tokens
        self._mode: Any = None

    def __enter__(self) -> Self:
        try:
            mode = _flop_counter()
            if mode is None:
                self._give_up("torch is not imported")
            else:
                mode.__enter__()
                self._mode = mode
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._give_up(repr_of(error))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        mode, self._mode = self._mode, None
        if mode is None:
            return
        try:
            mode.__exit__(kind, error, trace)
            if error is not None:
                return
            flops, unknown = int(mode.get_total_flops()), sorted(mode.unknown)
            if unknown:
                self._give_up(f"no formula for {', '.join(unknown[:8])}")
            elif not flops:
                self._give_up("no matrix product was seen")
            else:
                recomputed = mode.recomputed_flops()
                self.hardware_flops = None if recomputed is None else flops
                self.flops = flops - (recomputed or 0)
                self._record(self.flops)
        except Exception as trouble:  # noqa: BLE001 - telemetry never raises into training
            self._give_up(repr_of(trouble))

    def _give_up(self, reason: str) -> None:
        self._events.add("flops_not_counted", message=reason, severity="warning")

    def _record(self, flops: int) -> None:
        self._add(FLOPS_PER_STEP, flops)
        if self.hardware_flops is not None:
            self._add(HARDWARE_FLOPS_PER_STEP, self.hardware_flops)
        if self._tokens is not None:
            try:
                self._add(FLOPS_PER_TOKEN, flops / number(self._tokens))
            except (BadValueError, DeviceValueError, ZeroDivisionError) as error:
                self._sink.refuse("scalars", BAD_VALUE, f"tokens={error}")


def _flop_counter() -> Any:  # noqa: ANN401 - torch is no dependency
    if "torch" not in sys.modules:
        return None
    aten = sys.modules["torch"].ops.aten
    formulas = {
        getattr(aten, f"_scaled_dot_product_{kernel}{suffix}"): formula
        for kernel in _ATTENTION_KERNELS
        for suffix, formula in (("", attention_forward), ("_backward", attention_backward))
        if hasattr(aten, f"_scaled_dot_product_{kernel}{suffix}")
    }
    torch: Any = sys.modules["torch"]
    backward_pass: Any = getattr(torch._C, "_current_graph_task_id", None)  # noqa: SLF001 - there is no public function
    counter_class: Any = importlib.import_module("torch.utils.flop_counter").FlopCounterMode

    class Counter(counter_class):  # type: ignore[misc]  # torch may be missing
        """torch's counter, which also collects operators without a formula that multiply matrices."""

        def __init__(self) -> None:
            super().__init__(display=False, custom_mapping=formulas)
            self.mod_tracker = _NoModules()
            self.unknown: set[str] = set()
            self._passes: dict[int, list[int]] = {}  # FLOPs of a backward pass, without and with gradients

        def _count_flops(self, operator: Any, *args: Any) -> Any:  # noqa: ANN401 - torch's
            name = str(getattr(operator, "_qualified_op_name", ""))
            if name and operator not in self.flop_registry and not _is_free(name):
                self.unknown.add(name)
            before = self.get_total_flops()
            out = super()._count_flops(operator, *args)
            pass_id = -1 if backward_pass is None else backward_pass()
            if pass_id >= 0:
                self._passes.setdefault(pass_id, [0, 0])[torch.is_grad_enabled()] += self.get_total_flops() - before
            return out

        def recomputed_flops(self) -> int | None:
            """Return the FLOPs of forward operations within backward passes; None if torch does not report them.

            A backward pass computes gradients with gradients disabled, and recomputes activations with gradients
            enabled. A pass with gradients enabled throughout is differentiated itself (``create_graph``), and belongs
            to the model's own work.
            """
            return None if backward_pass is None else sum(on for off, on in self._passes.values() if off)

    return Counter()


class _NoModules:
    """Replaces torch's tracker of modules, whose hooks fail if `torch.autograd.grad` is called for a leaf."""

    parents: Final = frozenset({"Global"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _is_free(operator: str) -> bool:
    """Whether an operator without a formula contains no matrix product, judging by its name."""
    space, _, name = operator.partition("::")
    return space in _FREE_SPACES and not any(part in name for part in _PRODUCTS)


def attention_forward(query: Shape, key: Shape, value: Shape, *_: object, **__: object) -> int:
    """Return the FLOPs of the forward pass of scaled dot-product attention: two matrix products, masks ignored.

    Parameters
    ----------
    query, key, value
        Shapes (batch, heads, positions, channels); key and value may have fewer heads, which query heads share.

    Notes
    -----
    torch's own formulas lack the CPU's kernel, and count the scores that fused kernels recompute in the backward pass.
    Model FLOPs exclude recomputation (Chowdhery et al. 2022, PaLM, appendix B).
    """
    batch, heads, positions, channels = query
    return 2 * batch * heads * positions * key[2] * (channels + value[3])


def attention_backward(_: Shape, query: Shape, key: Shape, value: Shape, *__: object, **___: object) -> int:
    """Return the FLOPs of the backward pass: gradients of both products with respect to both factors."""
    return 2 * attention_forward(query, key, value)


def measure_cpu_peak() -> float | None:
    """Return the FLOP/s of the fastest of several float32 matrix products, with torch's current number of threads.

    It takes about two seconds. None without torch, or if a GPU is available, because a table has the peaks of GPUs.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or torch.cuda.is_available():
        return None
    best = 0.0
    began = time.perf_counter()
    generator = torch.Generator()  # must not change the random numbers of training
    with torch.no_grad():
        for size in _SIZES:
            left, right = (torch.rand(size, size, dtype=torch.float32, generator=generator) for _ in range(2))
            out = torch.empty(size, size, dtype=torch.float32)
            for _ in range(_TRIES):
                start = time.perf_counter()
                torch.mm(left, right, out=out)
                best = max(best, 2 * size**3 / (time.perf_counter() - start))
            if time.perf_counter() - began > _ENOUGH_S:
                break
    return best
