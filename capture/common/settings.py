"""Settings: the options of capture.

They come from ``[capture]`` in ``ranklake.toml``, then the environment, then the arguments of `start`; the last wins.
Training must never fail because of a misspelt setting: an unknown or unusable one gives a warning, and the default
applies. (The commands are strict about the same section; see `ranklake.config`.)
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from ranklake.capture.common.ratios import checked_ratio, parse_rules
from ranklake.capture.common.values import text
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.segments.storage_options import deferred_options

CONFIG_VARIABLE: Final = "RANKLAKE_CONFIG"
SPOOL_KEYS: Final = ("uri", "local")
"""What ``[spool]`` may say to a process that records."""
_PIPELINE_SPOOL_KEYS: Final = ("prefixes", "fallback_uri", "fallback_after_s", "fallback_storage")
"""What it may say to the agent and the pipeline."""
_UNUSABLE: Final = "unusable"
"""Source of a key where one was asked for in a way that is not understood: then nothing may leave without."""
_KEYS: Final = ("encryption_key", "signing_key", "masking_policy")
PREFIX: Final = "RANKLAKE_CAPTURE_"
"""``RANKLAKE_CAPTURE_SEAL_EVERY_S=30`` sets `CaptureSettings.seal_every_s`."""

PLACE_VARIABLES: Final = {
    "RANKLAKE_CLUSTER": "cluster",
    "RANKLAKE_DEPLOYMENT_ENVIRONMENT": "deployment_environment",
    "RANKLAKE_REGION": "region",
    "RANKLAKE_MASKING_KEY": "masking_key",
    "RANKLAKE_MASKING_POLICY": "masking_policy",
}
"""Settings that a variable without the prefix gives as well, as for pool and team."""

POLICIES: Final = ("flag", "quarantine", "drop")

Tell = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """Options of capture. Every field has a default that suits a training cluster.

    Where training runs, ``RANKLAKE_CAPTURE_`` and a field's name in capitals overrides it.
    """

    seal_every_s: float = 60.0
    """How long rows wait to be sealed and uploaded. In runs of over 1,024 ranks, steps, values and spans wait longer in
    proportion."""
    seal_at_most_s: float = 300.0
    """The longest that they wait there; ``seal_every_s`` where that is longer."""
    sync_every_s: float = 1.0
    """How long rows wait to be synced to disk: the most that a power failure loses. A killed process loses nothing."""
    agent_patience_s: float = 300.0
    """How long a sealed segment waits for the node's agent before its own process uploads it."""
    sampling: str = ""
    """Metrics to sample and the share to keep, such as ``eval/*=0.1, debug/*=0.01``; the first matching pattern
    applies."""
    slow_step_ratio: float = 2.0
    """A step this many times as long as the running median of the last 32 is slow: nothing in it is sampled out."""
    shards: str = "auto"
    """Whether each thread has slot files of its own: ``auto`` (if Python has no GIL), ``always`` or ``never``."""
    spool_writes: str = "auto"
    """How rows are written to the local spool: ``mmap``, or ``records`` with a system call each, for network file
    systems. ``auto`` chooses by the folder's file system."""
    disk_budget_bytes: int = 2 << 30
    """Local disk that a process may use while the store is unreachable; 0 for no limit. A forked child has a budget of
    its own."""
    backpressure: str = "aggregate"
    """What happens when the budget is nearly used up. ``aggregate``: values are folded into a row per metric and 10 s.
    ``drop_oldest``: the oldest sealed segments go. ``drop_newest``: new rows are dropped. ``block``: the caller
    waits. Samples and values are reduced first, then spans; the rest is reserved for steps, runs and events. Everything
    dropped is counted."""
    block_at_most_s: float = 10.0
    """How long a call may wait under ``block``. Then its row is counted as a gap, and no call waits for one second."""
    contracts_overlay: str = ""
    """Folder of your own contracts: its tables and columns are recorded, and its ``metrics.yaml`` registers your
    metrics; default: ``[contracts] overlay``. See docs/overlays.md."""
    unregistered: str = "flag"
    """What happens to metrics that are not in the registry: ``flag``, ``quarantine`` or ``drop``."""
    wrong_kind: str = "flag"
    """The same for metrics declared with another kind than the registry's."""
    wrong_unit: str = "flag"
    """The same for metrics declared with another unit than the registry's."""
    out_of_range: str = "flag"
    """The same for values outside their metric's range."""
    max_series: int = 10_000
    """Maximum number of series of a process."""
    over_max_series: str = "drop"
    """What happens to values of further series: counted as gaps or, with ``flag`` and ``quarantine``, kept under one
    shared name."""
    encryption_key: str = ""
    """Where the key is that encrypts segments before they are sent: ``file:/path``, ``env:NAME`` or
    ``command:/path/to/helper``. Never the key itself. Empty: not encrypted. The commands that read segments look for
    keys there, too."""
    masking_policy: str = ""
    """File that says which classified columns are masked before a row is written; default: ``[masking] policy``. See
    docs/roles.md. If it cannot be read, no classified column is recorded, but for numbers that an overlay adds to
    ``steps``, which no policy can mask."""
    masking_key: str = ""
    """Where the keys of pseudonyms are, in the same form as ``encryption_key``; default: ``[masking] key``. Without
    them, columns that are to be hashed are NULL."""
    signing_key: str = ""
    """Where the key is that signs segments, in the same form as ``encryption_key``, so that ingest knows who wrote
    them. Empty: not signed."""

    heartbeat_every_s: float = 60.0
    """How often a rank that records neither steps nor phases writes a heartbeat; 0 for never. See `heartbeat`."""
    hang_s: float = 300.0
    """Time without a step or phase that begins, once one has, after which the stacks of all threads are recorded as log
    lines; 0 for never."""
    preemption_signals: str = "SIGTERM"
    """Signals that announce the end, such as ``SIGTERM, SIGUSR1``: recorded as ``preemption``, even if your code has a
    handler. Empty for none. Lightning requeues on SIGUSR1 only if that has no other handler: leave it out there."""
    preemption_grace_s: float = 2.0
    """Max delay before exiting on such a signal that has no other handler, to send what was recorded."""

    stderr: str = "faults"
    """What is recorded of standard error. ``faults``: the fault handler's text, unless your code has enabled that.
    ``all``: each line, too, read by a process that passes them on. ``off``: nothing, nor of `NCCL_DEBUG_FILE`."""
    stdout: str = "off"
    """What is recorded of standard output, read by a process that passes it on. ``nccl``: NCCL's lines. ``all``: each
    line. ``off``: nothing, and the descriptor is left alone."""
    fingerprint_key: str = ""
    """Where the key for fingerprints of features and request IDs is, in the same form as ``encryption_key``; use the
    same key wherever they are to be compared. Empty: random, and new in each process."""
    log_rate_per_s: float = 1.0
    """Long-term rate of log lines kept per template; suppressed lines are counted in the next row."""
    log_burst: float = 60.0
    """Number of lines per template that may come at once."""
    log_verbose: float = 0.1
    """Share of the lines below INFO that is kept, if a handler lets them through."""

    media_max_bytes: int = 512 << 10
    """Largest image, table or text that `Run.media` keeps, at most 640 KiB. A larger one is counted as a gap."""
    media_max_count: int = 1000
    """How many of them a process keeps; 0 for none."""
    media_max_total_bytes: int = 64 << 20
    """How many bytes of them a process keeps."""

    announce: str = "on"
    """Whether rank 0 says on standard error what the run is called and where it goes when it starts, and what it
    recorded when it ends: ``on`` or ``off``."""

    cluster: str = ""
    """Name of the cluster that the run runs on; overridden by ``RANKLAKE_CLUSTER``, too. Empty: what
    ``OTEL_RESOURCE_ATTRIBUTES`` or the scheduler says."""
    deployment_environment: str = ""
    """Production, staging, development, or another word of yours: recorded with the run; overridden by
    ``RANKLAKE_DEPLOYMENT_ENVIRONMENT``, too. Empty: what ``OTEL_RESOURCE_ATTRIBUTES`` says."""
    region: str = ""
    """Region of the cloud, or site; overridden by ``RANKLAKE_REGION``, too. Empty: what ``OTEL_RESOURCE_ATTRIBUTES``
    says."""

    samplers: str = "auto"
    """Whether local rank 0 samples its node's GPUs and host: ``auto`` while no agent serves the local spool (the agent
    samples then); ``on`` even beside an agent; or ``off``. A process started without a launcher counts as local rank
    0."""
    sample_every_s: float = 1.0
    """Time between samples."""
    startup: str = "on"
    """Whether the parts of a start are recorded: ``on``, by a thread that looks what the process does until its first
    step has ended; or ``off``. See docs/goodput.md."""
    patch_bytes: int = 1 << 16
    """How much of the diff between the training code and its commit is kept; at most 128 KiB, 0 for nothing. Its hash
    and size are always recorded."""

    def seal_slots_every_s(self, world_size: int) -> float:
        """Return how long rows in slots (steps, values, spans) wait to be sealed in a run of so many ranks, in s.

        Each segment costs ingest the same however few rows it has. So a run brings no more of them a second than one of
        `_MINUTE_RANKS` ranks does, up to the longest wait.
        """
        longest_s = max(self.seal_every_s, self.seal_at_most_s)
        return min(longest_s, self.seal_every_s * max(1.0, world_size / _MINUTE_RANKS))

    def __post_init__(self) -> None:
        _check("sampling", parse_rules, self.sampling)
        for name, least in _LEAST.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be at least {least}")
        _check("log_verbose", checked_ratio, self.log_verbose)
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise ValueError(f"{name} must be one of {', '.join(words)}")


def _check(name: str, check: Callable[[Any], object], value: object) -> None:
    """Check a setting by what reads it. Raises its `ValueError` with the setting's name."""
    try:
        check(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


_MINUTE_RANKS: Final = 1024

_LEAST: Final[dict[str, float]] = {
    "seal_every_s": 0.05,
    "seal_at_most_s": 0.05,
    "sync_every_s": 0.0,
    "agent_patience_s": 0.0,
    "slow_step_ratio": 1.0,
    "disk_budget_bytes": 0,
    "block_at_most_s": 0.0,
    "max_series": 1,
    "heartbeat_every_s": 0.0,
    "hang_s": 0.0,
    "log_rate_per_s": 0.0,
    "log_burst": 1.0,
    "media_max_bytes": 0,
    "media_max_count": 0,
    "media_max_total_bytes": 0,
    "log_verbose": 0.0,
    "preemption_grace_s": 0.0,
    "sample_every_s": 0.1,
    "patch_bytes": 0,
}
_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "stderr": ("off", "faults", "all"),
    "stdout": ("off", "nccl", "all"),
    "shards": ("auto", "always", "never"),
    "announce": ("on", "off"),
    "samplers": ("auto", "on", "off"),
    "startup": ("on", "off"),
    "spool_writes": ("auto", "mmap", "records"),
    "backpressure": ("aggregate", "drop_oldest", "drop_newest", "block"),
    **dict.fromkeys(("unregistered", "wrong_kind", "wrong_unit", "out_of_range", "over_max_series"), POLICIES),
}

_KINDS: Final[dict[object, Callable[[Any], Any]]] = {float: float, int: int, str: text}


def read_settings(given: Mapping[str, Any], environment: Mapping[str, str], tell: Tell) -> CaptureSettings:
    """Return the effective settings; faults of a source go to `tell` (topic, text) and are never raised.

    Parameters
    ----------
    given
        By name, as handed to `start`; None stands for not given.
    environment
        Usually `os.environ`.
    """
    chosen: dict[str, Any] = {}
    for where, name, raw in _sources(given, environment, tell):
        kind = {field.name: field.type for field in fields(CaptureSettings)}.get(name)
        if kind is None:
            tell(f"{where}.{name}", f"unknown setting {name!r} in {where}{_hint(name)}; it is left out")
            for key in _KEYS:
                if f"'{key}'" in _hint(name):
                    chosen.setdefault(key, _UNUSABLE)
            continue
        try:
            value = _KINDS[kind](raw)
            CaptureSettings(**{name: value})
        except Exception as error:  # noqa: BLE001 - users hand over anything
            tell(f"{where}.{name}", f"{name} in {where} is not usable ({type(error).__name__}: {error}) and left out")
            continue
        chosen[name] = value
    return CaptureSettings(**chosen)


def read_storage(uri: str, environment: Mapping[str, str], tell: Tell) -> dict[str, Any]:
    """Return fsspec's options for a spool, from ``[storage]`` in ``ranklake.toml``; what is wrong goes to `tell`.

    References among them are followed when an uploader connects.
    """
    file = _file(environment)
    try:
        section = tomllib.loads(file.read_text(encoding="utf-8-sig")).get("storage", {}) if file.is_file() else {}
        return deferred_options(uri, {name: str(value) for name, value in section.items()})
    except (OSError, ValueError, AttributeError, RanklakeError) as error:
        tell("storage", f"[storage] of {file} cannot be used ({type(error).__name__}: {error}) and is left out")
        return {}


def read_spool(environment: Mapping[str, str], tell: Tell) -> dict[str, str]:
    """Return what ``[spool]`` in ``ranklake.toml`` says (``uri``, ``local``); what is wrong goes to `tell`."""
    file = _file(environment)
    try:
        section = tomllib.loads(file.read_text(encoding="utf-8-sig")).get("spool", {}) if file.is_file() else {}
        values = {str(name): value for name, value in section.items()}
    except (OSError, ValueError, AttributeError):  # `read_settings` reports it
        return {}
    for name in sorted(values):
        if name in _PIPELINE_SPOOL_KEYS:
            continue
        if name not in SPOOL_KEYS:
            hint = did_you_mean(name, SPOOL_KEYS)
            tell(f"[spool].{name}", f"unknown setting {name!r} in [spool] of {file}{hint and f' ({hint})'}; left out")
        elif not isinstance(values[name], str):
            tell(f"[spool].{name}", f"{name} in [spool] of {file} is not text and left out")
    return {name: value for name, value in values.items() if name in SPOOL_KEYS and isinstance(value, str)}


def _file(environment: Mapping[str, str]) -> Path:
    return Path(environment.get(CONFIG_VARIABLE) or "ranklake.toml")


def _speaks_of(key: str, file: Path) -> bool:
    try:
        return key.encode() in file.read_bytes()
    except OSError:
        return False


_OTHER_TRACKERS: Final = {
    "entity": "labels={'team': …} says whose it is",
    "group": "job= groups runs",
    "id": "run= names it",
    "name": "run= names it",
    "notes": "run.note(…) takes notes",
    "params": "config= takes them",
    "project": "job= groups runs",
    "tags": "run.tags.add(…) tags it, labels= takes names with values",
    "team": "labels={'team': …} says whose it is",
}
"""What the arguments of other trackers are called here."""


def _hint(name: str) -> str:
    if name in _OTHER_TRACKERS:
        return f" ({_OTHER_TRACKERS[name]})"
    hint = did_you_mean(name, [field.name for field in fields(CaptureSettings)])
    return f" ({hint})" if hint else ""


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each variable that says a setting, and which; of two for one setting the later counts."""
    yield from ((variable, name) for variable, name in PLACE_VARIABLES.items() if environment.get(variable))
    for variable in sorted(environment):
        if variable.startswith(PREFIX):
            yield variable, variable.removeprefix(PREFIX).lower()


def _sources(given: Mapping[str, Any], environment: Mapping[str, str], tell: Tell) -> Iterator[tuple[str, str, Any]]:
    file = _file(environment)
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8-sig")) if file.is_file() else {}
        overlay = content.get("contracts", {}).get("overlay")
        if overlay is not None:
            yield f"[contracts] of {file}", "contracts_overlay", overlay
        for name, raw in content.get("masking", {}).items():  # an unknown one may be a policy that is misspelt
            yield f"[masking] of {file}", f"masking_{name}", raw
        for name, raw in content.get("capture", {}).items():
            yield f"[capture] of {file}", name, raw
    except (OSError, ValueError, AttributeError) as error:
        tell("ranklake.toml", f"{file} cannot be read ({error}); its settings are left out")
        for key in _KEYS:
            if _speaks_of(key.removesuffix("_policy"), file):
                yield f"[capture] of {file}", key, _UNUSABLE
    for variable, name in _variables(environment):
        yield "the environment", name, environment[variable]
    for name, raw in given.items():
        if raw is not None:
            yield "start()", name, raw
