"""FLOPs per training token of a transformer, by published conventions.

A convention defines what is counted: which parameters, causal or full attention, which matrix products. Two conventions
differ by several percent for the same run, so each number is shown with the name of its convention.

Notation: N parameters, L layers, h model width, a attention width (heads times head size; h if unknown), s sequence
length, V vocabulary size. All counts are forward plus backward. The backward pass has twice the forward's products.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.rollups.peaks import Peak, find_peak

RECOMPUTE: Final = ("none", "selective", "full")
N_CONVENTIONS: Final = ("all", "without-input-embedding")


class FlopsError(RanklakeError):
    """FLOPs cannot be counted from the given values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Sizes of a model that conventions use; None is unknown.

    Attributes
    ----------
    params
        N, number of parameters, including the input embedding.
    active_params
        For a mixture of experts, the parameters used for one token, including the input embedding. They replace N.
    input_embedding_params
        Parameters of the input embedding; by default V·h, if both are known.
    layers, d_model, seq_len, vocab
        L, h, s, V.
    attention_width
        Heads times head size, if different from h.
    flops_per_token
        Forward plus backward, counted by a tool such as torch's flop counter.
    """

    params: float | None = None
    active_params: float | None = None
    input_embedding_params: float | None = None
    layers: int | None = None
    d_model: int | None = None
    seq_len: int | None = None
    vocab: int | None = None
    attention_width: int | None = None
    flops_per_token: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """FLOPs of one token as a sum of terms. Each attribute is the factor of the quantity in its description.

    Attributes
    ----------
    n
        N, under the given N convention. One pass costs 2·N.
    attention
        L·a·s. Each of the two attention products costs 2·L·a·s per pass with full attention.
    block
        L·h². The matrices of a GPT block (attention 4·h², feed-forward 8·h²) cost 24·L·h² per pass.
    logits
        V·h. The last product costs 2·V·h per pass.
    counted
        `Model.flops_per_token`.
    """

    n: float = 0
    attention: float = 0
    block: float = 0
    logits: float = 0
    counted: float = 0

    @property
    def needs(self) -> tuple[str, ...]:
        """Attributes of `Model` that the terms need, in order."""
        names: list[str] = ["params"] if self.n else []
        names += ["layers", "d_model"] if self.attention or self.block else []
        names += ["seq_len"] if self.attention else []
        names += ["vocab"] if self.logits else []
        return tuple(names + (["flops_per_token"] if self.counted else []))

    def of(self, model: Model, n: float) -> float:
        """Return the sum for a model. Sizes that no term needs may be unknown."""
        layers, width = float(model.layers or 0), float(model.d_model or 0)
        return (
            self.n * n
            + self.attention * layers * (model.attention_width or width) * (model.seq_len or 0)
            + self.block * layers * width**2
            + self.logits * width * (model.vocab or 0)
            + self.counted * (model.flops_per_token or 0)
        )


@dataclass(frozen=True, slots=True)
class Convention:
    """A convention for counting FLOPs.

    Attributes
    ----------
    name, formula, source
        Texts that are shown with every number.
    model
        Model FLOPs of one token.
    extra
        Additional FLOPs of activation recomputation, by kind. A missing kind is not defined by this convention.
    recompute
        Default kind of recomputation: the one that the source assumes.
    """

    name: str
    formula: str
    source: str
    model: Terms
    extra: Mapping[str, Terms]
    recompute: str = "none"


@dataclass(frozen=True, slots=True)
class TokenFlops:
    """FLOPs of one training token.

    Attributes
    ----------
    model
        FLOPs without recomputation: the numerator of MFU.
    hardware
        FLOPs with recomputed activations: the numerator of HFU. None if the convention does not define it.
    convention, n_convention, recompute
        How the FLOPs were counted; `n_convention` is empty if the convention does not use N.
    reason
        Why `hardware` is None.
    """

    model: float
    hardware: float | None
    convention: Convention
    n_convention: str
    recompute: str
    reason: str = ""


_MATRIX_PRODUCTS: Final = Terms(block=72, attention=12, logits=6)
_ALL: Final = (
    Convention(
        name="6N",
        formula="6N",
        source="Kaplan et al. 2020, Scaling Laws for Neural Language Models, section 2.1",
        model=Terms(n=6),
        extra={"none": Terms(), "full": Terms(n=2)},
    ),
    Convention(
        name="6N+6LHS",
        formula="6N + 6·L·a·s (causal attention)",
        source="Chowdhery et al. 2022, PaLM, appendix B, less the half of attention that a causal mask skips",
        model=Terms(n=6, attention=6),
        extra={"none": Terms(), "selective": Terms(attention=2), "full": Terms(n=2, attention=2)},
    ),
    Convention(
        name="6N+12LHS",
        formula="6N + 12·L·a·s (full attention)",
        source="Chowdhery et al. 2022, PaLM, appendix B",
        model=Terms(n=6, attention=12),
        extra={"none": Terms(), "selective": Terms(attention=4), "full": Terms(n=2, attention=4)},
    ),
    Convention(
        name="narayanan",
        formula="72·L·h²·(1 + s/6h + V/12Lh); with full recomputation 96·L·h²·(1 + s/6h + V/16Lh)",
        source="Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters, equation 3",
        model=_MATRIX_PRODUCTS,
        extra={"none": Terms(), "selective": Terms(attention=4), "full": Terms(block=24, attention=4)},
        recompute="full",
    ),
    Convention(
        name="korthikanti",
        formula="72·L·h²·(1 + s/6h + V/12Lh); with selective recomputation 72·L·h²·(1 + s/3h + V/12Lh)",
        source="Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models, as printed",
        model=_MATRIX_PRODUCTS,
        # The two recomputed products cost 4·L·a·s, as for `narayanan`; but the paper prints s/3h, which is 12·L·a·s.
        extra={"none": Terms(), "selective": Terms(attention=12), "full": Terms(block=24, attention=4)},
        recompute="selective",
    ),
    Convention(
        name="counted",
        formula="counted, forward and backward",
        source="a count of the operations that ran, such as torch's flop counter gives",
        model=Terms(counted=1),
        extra={"none": Terms()},
    ),
)
CONVENTIONS: Final[Mapping[str, Convention]] = MappingProxyType({item.name: item for item in _ALL})
_ALIASES: Final = {
    "none": "6N",
    "causal": "6N+6LHS",
    "6LHS": "6N+6LHS",
    "full": "6N+12LHS",
    "palm": "6N+12LHS",
    "12LHS": "6N+12LHS",
    "narayanan-eq3": "narayanan",
    "eq3": "narayanan",
    "selective": "korthikanti",
}
_BY_KEY: Final = {name.casefold(): name for name in (*CONVENTIONS, *_ALIASES)}


def convention(name: str) -> Convention:
    """Return a convention by name or alias, in any case and spacing. Raises `FlopsError` with the nearest name."""
    key = _BY_KEY.get("".join(name.split()).casefold())
    if key is None:
        raise FlopsError(f"unknown FLOPs convention {name!r}", hint=did_you_mean(name, (*CONVENTIONS, *_ALIASES)))
    return CONVENTIONS[_ALIASES.get(key, key)]


def token_flops(
    model: Model, chosen: Convention, *, n_convention: str = "all", recompute: str | None = None
) -> TokenFlops:
    """Count the FLOPs of one training token.

    Parameters
    ----------
    n_convention
        Whether N includes the input embedding, which is a lookup without products: ``all`` or
        ``without-input-embedding``. The difference is up to 7 % for small models.
    recompute
        Activations that the backward pass computes again: ``none``, ``selective`` (only the attention products) or
        ``full``; None for the convention's default.

    Raises
    ------
    FlopsError
        A value that the convention needs is missing or contradicts another one.
    """
    known = {"params": model.params if model.active_params is None else model.active_params}
    missing = [name for name in chosen.model.needs if known.get(name, getattr(model, name)) is None]
    if missing:
        names = ", ".join(name.replace("_", "-") for name in missing)
        raise FlopsError(f"convention {chosen.name} needs {names}", hint="give it, or take another convention")
    if (model.active_params or 0) > (model.params or float("inf")):
        raise FlopsError("more parameters are active than there are", hint="check active-params and params")
    if model.active_params is not None and not chosen.model.n:
        raise FlopsError(f"convention {chosen.name} knows no active parameters", hint="take 6N, 6N+6LHS or 6N+12LHS")
    n = _n(model, n_convention) if chosen.model.n else 0.0
    kind = recompute or chosen.recompute
    if kind not in RECOMPUTE:
        raise FlopsError(f"unknown recomputation {kind!r}", hint=did_you_mean(kind, RECOMPUTE))
    counted = chosen.model.of(model, n)
    extra = chosen.extra.get(kind)
    return TokenFlops(
        model=counted,
        hardware=None if extra is None else counted + extra.of(model, n),
        convention=chosen,
        n_convention=n_convention if chosen.model.n else "",
        recompute=kind,
        reason="" if extra is not None else f"convention {chosen.name} does not say what {kind} recomputation costs",
    )


def _n(model: Model, n_convention: str) -> float:
    n = model.params if model.active_params is None else model.active_params
    assert n is not None
    if n_convention == "all":
        return n
    if n_convention != "without-input-embedding":
        raise FlopsError(f"unknown N convention {n_convention!r}", hint=did_you_mean(n_convention, N_CONVENTIONS))
    embedding = model.input_embedding_params
    if embedding is None and model.vocab is not None and model.d_model is not None:
        embedding = model.vocab * model.d_model
    if embedding is None:
        raise FlopsError("the size of the input embedding is not known", hint="give it, or vocab and d-model")
    if embedding > n:
        raise FlopsError(f"the input embedding ({embedding:.0f}) is larger than N ({n:.0f})", hint="check both")
    return n - embedding


@dataclass(frozen=True, slots=True)
class Utilization:
    """MFU and HFU, with the values from which they were computed.

    Attributes
    ----------
    mfu_ratio, hfu_ratio
        Model and hardware FLOP/s divided by the peak; None if unknown, with the causes in `reasons`.
    model_flops_per_s, hardware_flops_per_s
        FLOP/s per device.
    peak_flops_per_s, peak_source
        Dense peak per device, and its source.
    flops
        FLOPs of one token.
    """

    mfu_ratio: float | None
    hfu_ratio: float | None
    model_flops_per_s: float
    hardware_flops_per_s: float | None
    peak_flops_per_s: float | None
    peak_source: str
    flops: TokenFlops
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenPeak:
    """A peak FLOP/s of one device, from the user or from the table."""

    flops_per_s: float
    source: str = "given"


def named_peak(device: str, dtype: str, form_factor: str | None = None) -> GivenPeak | str:
    """Return the peak of a device and number format from the table, or the reason why it is unknown."""
    peak = find_peak(device, dtype, form_factor)
    if isinstance(peak, Peak):
        return GivenPeak(peak.flops_per_s, f"table: {peak.source}")
    return peak.reason


def utilization(flops: TokenFlops, tokens_per_s: float, n_devices: int, peak: GivenPeak | str) -> Utilization:
    """Compute MFU and HFU: FLOP/s per device divided by the peak.

    Parameters
    ----------
    tokens_per_s
        Tokens per second of all devices together, measured over complete steps.
    peak
        Peak of one device; a text is the reason why it is unknown.
    """
    rate = tokens_per_s / n_devices
    model_rate = flops.model * rate
    hardware_rate = None if flops.hardware is None else flops.hardware * rate
    reasons = tuple(reason for reason in (peak if isinstance(peak, str) else "", flops.reason) if reason)
    if isinstance(peak, str):
        return Utilization(None, None, model_rate, hardware_rate, None, "", flops, reasons)
    hfu = None if hardware_rate is None else hardware_rate / peak.flops_per_s
    mfu = model_rate / peak.flops_per_s
    if max(mfu, hfu or 0) > 1:
        reasons = (*reasons, "more than the peak was done: it is of another device or number format")
    return Utilization(mfu, hfu, model_rate, hardware_rate, peak.flops_per_s, peak.source, flops, reasons)
