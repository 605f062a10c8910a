"""FLOPs that a transformer spends on one training token, by published convention.

A convention says what is counted: which parameters, whether attention is causal, which matrix products. Numbers of two
conventions differ by several percent on the same run, so the convention's name stands with every number.

Notation: N parameters, L layers, h model width, a attention width (heads times head size, h if not said), s sequence
length, V vocabulary. All counts are forward plus backward; the backward pass does twice the forward's products.
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
    """FLOPs that cannot be counted from what was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a convention may ask of a model; None is unknown.

    Attributes
    ----------
    params
        N, parameters, the input embedding included.
    active_params
        Of a mixture of experts: the parameters that one token meets, input embedding included. They replace N.
    input_embedding_params
        Parameters of the input embedding alone; V·h where it is not given but V and h are.
    layers, d_model, seq_len, vocab
        L, h, s, V.
    attention_width
        Heads times head size, where that is not h.
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
    """FLOPs of one token as a sum: each attribute is the factor of the quantity beside it.

    Attributes
    ----------
    n
        N, under the chosen N convention. One pass costs 2·N.
    attention
        L·a·s. Each of the two attention products costs 2·L·a·s a pass, if every position is met.
    block
        L·h². The matrices of a GPT block (attention 4·h², feed-forward 8·h²) cost 24·L·h² a pass.
    logits
        V·h. The last product costs 2·V·h a pass.
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
        """Attributes of `Model` that must be known to evaluate this, in order."""
        names: list[str] = ["params"] if self.n else []
        names += ["layers", "d_model"] if self.attention or self.block else []
        names += ["seq_len"] if self.attention else []
        names += ["vocab"] if self.logits else []
        return tuple(names + (["flops_per_token"] if self.counted else []))

    def of(self, model: Model, n: float) -> float:
        """Evaluate for a model; what is not needed may be unknown."""
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
    """One way to count.

    Attributes
    ----------
    name, formula, source
        As shown beside every number.
    model
        Model FLOPs of one token.
    extra
        What activation recomputation adds, by kind. A missing kind is not defined by this convention.
    recompute
        The recomputation that the source has in mind, taken where none is said.
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
        What the mathematics needs: the numerator of MFU.
    hardware
        With recomputed activations: the numerator of HFU. None where the convention does not define it.
    convention, n_convention, recompute
        What was counted; `n_convention` is empty where N does not enter.
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
        # Counting the two repeated products gives 4·L·a·s, as for `narayanan`; the paper prints s/3h, which is 12.
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
        Whether N counts the input embedding, which is looked up and not multiplied: ``all`` or
        ``without-input-embedding``. Moves the result by up to 7 % on small models.
    recompute
        Which activations the backward pass computes again: ``none``, ``selective`` (the attention products alone) or
        ``full``; None takes the one that the convention's source has in mind.

    Raises
    ------
    FlopsError
        A value that the convention needs is not given, or contradicts it.
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
    """The result, with all that it hangs on.

    Attributes
    ----------
    mfu_ratio, hfu_ratio
        Model and hardware FLOP/s over peak; None where unknown, and `reasons` says why.
    model_flops_per_s, hardware_flops_per_s
        Per device.
    peak_flops_per_s, peak_source
        Per device, dense; where it is from.
    flops
        FLOPs of one token, and under which convention.
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
    """A peak that the user states."""

    flops_per_s: float
    source: str = "given"


def named_peak(device: str, dtype: str, form_factor: str | None = None) -> GivenPeak | str:
    """Return the table's peak of a device and number format, or the reason why there is none."""
    peak = find_peak(device, dtype, form_factor)
    if isinstance(peak, Peak):
        return GivenPeak(peak.flops_per_s, f"table: {peak.source}")
    return peak.reason


def utilization(flops: TokenFlops, tokens_per_s: float, n_devices: int, peak: GivenPeak | str) -> Utilization:
    """Divide what was done by what could have been.

    Parameters
    ----------
    tokens_per_s
        Of all devices together, measured over whole steps.
    peak
        Of one device; a text is the reason why it is unknown.
    """
    rate = tokens_per_s / n_devices
    done = flops.model * rate
    spent = None if flops.hardware is None else flops.hardware * rate
    reasons = tuple(reason for reason in (peak if isinstance(peak, str) else "", flops.reason) if reason)
    if isinstance(peak, str):
        return Utilization(None, None, done, spent, None, "", flops, reasons)
    hfu = None if spent is None else spent / peak.flops_per_s
    mfu = done / peak.flops_per_s
    if max(mfu, hfu or 0) > 1:
        reasons = (*reasons, "more than the peak was done: it is of another device or number format")
    return Utilization(mfu, hfu, done, spent, peak.flops_per_s, peak.source, flops, reasons)
