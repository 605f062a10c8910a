"""Settings: the options of capture.

Sources are ``[capture]`` in ``ranklake.toml``, the environment, and the arguments of `start`; a later source overrides
an earlier one. Training must never fail because of a misspelt setting: an unknown or unusable setting causes a warning,
and the default applies. Commands reject such settings in the same section; see `ranklake.config`.
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
"""Keys of ``[spool]`` for a process that records."""
_PIPELINE_SPOOL_KEYS: Final = ("prefixes", "fallback_uri", "fallback_after_s", "fallback_storage")
"""Keys of ``[spool]`` for the agent and the pipeline."""
_UNUSABLE: Final = "unusable"
"""Source of a key that was configured with an error: without the key, nothing may be sent."""
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
"""Settings that a variable without the prefix sets, too, as for pool and team."""

POLICIES: Final = ("flag", "quarantine", "drop")

Warn = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """Options of capture. Every field has a default that suits a training cluster.

    Where training runs, ``RANKLAKE_CAPTURE_`` and a field's name in capitals overrides it.
    """

    seal_every_s: float = 60.0
    """Time until rows are sealed and uploaded. In runs of more than 1,024 ranks, steps, values and spans wait longer,
    in proportion to the number of ranks."""
    seal_at_most_s: float = 300.0
    """Longest time until rows are sealed in such runs; ``seal_every_s`` if that is longer."""
    sync_every_s: float = 1.0
    """Time until rows are synced to disk: a power failure loses at most the rows of this time. A killed process loses
    none."""
    agent_patience_s: float = 300.0
    """Time that a sealed segment waits for the node's agent before its own process uploads it."""
    sampling: str = ""
    """Metrics to sample and the share of values to keep, such as ``eval/*=0.1, debug/*=0.01``; the first matching
    pattern applies."""
    slow_step_ratio: float = 2.0
    """A step that takes this many times the median of the last 32 steps is slow. All values of a slow step are kept."""
    shards: str = "auto"
    """Whether each thread has separate slot files: ``auto`` (if Python has no GIL), ``always`` or ``never``."""
    spool_writes: str = "auto"
    """How rows are written to the local spool: ``mmap``, or ``records`` with one system call per row, for network file
    systems. ``auto`` chooses by the folder's file system."""
    disk_budget_bytes: int = 2 << 30
    """Local disk that a process may use while the store is unreachable; 0 for no limit. A forked child has a separate
    budget."""
    backpressure: str = "aggregate"
    """What happens when the budget is nearly used up. ``aggregate``: values become one row per metric and 10 s.
    ``drop_oldest``: the oldest sealed segments are deleted. ``drop_newest``: new rows are dropped. ``block``: the
    caller waits. Samples and values are reduced first, then spans; the rest is reserved for steps, runs and events. All
    dropped rows are counted."""
    block_at_most_s: float = 10.0
    """How long a call may wait under ``block``. Then its row is counted as a gap, and no call waits for one second."""
    contracts_overlay: str = ""
    """Folder of your own contracts: its tables and columns are recorded, and its ``metrics.yaml`` registers your
    metrics; default: ``[contracts] overlay``. See docs/overlays.md."""
    unregistered: str = "flag"
    """What happens to metrics that are not in the registry: ``flag``, ``quarantine`` or ``drop``."""
    wrong_kind: str = "flag"
    """What happens to metrics declared with another kind than the registry's, as above."""
    wrong_unit: str = "flag"
    """What happens to metrics declared with another unit than the registry's, as above."""
    out_of_range: str = "flag"
    """What happens to values outside their metric's range, as above."""
    max_series: int = 10_000
    """Maximum number of series of a process."""
    over_max_series: str = "drop"
    """What happens to values of further series: ``drop`` counts them as gaps; ``flag`` and ``quarantine`` keep them
    under one shared name."""
    encryption_key: str = ""
    """Source of the key that encrypts segments before they are sent: ``file:/path``, ``env:NAME`` or
    ``command:/path/to/helper``. Never the key itself. Empty: not encrypted. The commands that read segments use the
    same setting."""
    masking_policy: str = ""
    """File of rules for masking classified columns before a row is written; default: ``[masking] policy``. See
    docs/roles.md. If it cannot be read, no classified column is recorded, except numbers that an overlay adds to
    ``steps``, which no policy can mask."""
    masking_key: str = ""
    """Source of the keys of pseudonyms, in the same form as ``encryption_key``; default: ``[masking] key``. Without
    keys, columns that must be hashed are NULL."""
    signing_key: str = ""
    """Source of the key that signs segments, in the same form as ``encryption_key``, so that ingest can verify their
    writer. Empty: not signed."""

    heartbeat_every_s: float = 60.0
    """Time between heartbeats of a rank that records neither steps nor phases; 0 for none. See the event
    `heartbeat`."""
    hang_s: float = 300.0
    """Time without a new step or phase, after the first one, until the stacks of all threads are recorded as log lines;
    0 for never."""
    preemption_signals: str = "SIGTERM"
    """Signals that announce the end, such as ``SIGTERM, SIGUSR1``: recorded as ``preemption``, even if your code has a
    handler. Empty for none. With Lightning, omit SIGUSR1: it requeues on this signal only if no other handler is
    set."""
    preemption_grace_s: float = 2.0
    """Longest delay before the process exits on such a signal without another handler, for sending recorded rows."""

    stderr: str = "faults"
    """What is recorded of standard error. ``faults``: the text of Python's fault handler, unless your code has enabled
    the handler. ``all``: also each line; a helper process reads and forwards them. ``off``: nothing, not even of
    `NCCL_DEBUG_FILE`."""
    stdout: str = "off"
    """What is recorded of standard output; a helper process reads and forwards it. ``nccl``: NCCL's lines. ``all``:
    each line. ``off``: nothing, and the descriptor is unchanged."""
    fingerprint_key: str = ""
    """Source of the key for fingerprints of features and request IDs, in the same form as ``encryption_key``. Processes
    whose fingerprints are compared need the same key. Empty: a random key for each process."""
    log_rate_per_s: float = 1.0
    """Long-term rate of log lines kept per template; suppressed lines are counted in the next row."""
    log_burst: float = 60.0
    """Most lines per template that are kept in a burst."""
    log_verbose: float = 0.1
    """Share of lines below INFO to keep, of those that a handler accepts."""

    media_max_bytes: int = 512 << 10
    """Largest image, table or text that `Run.media` keeps, at most 640 KiB. A larger one is counted as a gap."""
    media_max_count: int = 1000
    """Most images, tables and texts that a process keeps; 0 for none."""
    media_max_total_bytes: int = 64 << 20
    """Most bytes of images, tables and texts that a process keeps."""

    announce: str = "on"
    """Whether rank 0 prints the run's name and destination on standard error at the start, and a summary at the end:
    ``on`` or ``off``."""

    cluster: str = ""
    """Name of the run's cluster; overridden by ``RANKLAKE_CLUSTER``, too. Empty: from ``OTEL_RESOURCE_ATTRIBUTES`` or
    the scheduler."""
    deployment_environment: str = ""
    """Production, staging, development, or another name: recorded with the run; overridden by
    ``RANKLAKE_DEPLOYMENT_ENVIRONMENT``, too. Empty: from ``OTEL_RESOURCE_ATTRIBUTES``."""
    region: str = ""
    """Region of the cloud, or site; overridden by ``RANKLAKE_REGION``, too. Empty: from
    ``OTEL_RESOURCE_ATTRIBUTES``."""

    samplers: str = "auto"
    """Whether local rank 0 samples its node's GPUs and host. ``auto``: only while no agent serves the local spool,
    because an agent samples itself. ``on``: even beside an agent. ``off``: never. A process started without a launcher
    counts as local rank 0."""
    sample_every_s: float = 1.0
    """Time between samples."""
    startup: str = "on"
    """Whether the parts of a start are recorded: ``on``, by a thread that samples the stack of the starting thread
    until its first step has ended; or ``off``. See docs/goodput.md."""
    patch_bytes: int = 1 << 16
    """Bytes to keep of the diff between the training code and its commit; at most 128 KiB, 0 for none. The diff's hash
    and size are always recorded."""

    def seal_slots_every_s(self, world_size: int) -> float:
        """Return how many seconds rows in slots (steps, values, spans) wait to be sealed, for a number of ranks.

        The cost of ingesting a segment does not depend on its number of rows. So a larger run produces as many segments
        per second as a run of `_MINUTE_RANKS` ranks, up to the longest wait.
        """
        longest_s = max(self.seal_every_s, self.seal_at_most_s)
        return min(longest_s, self.seal_every_s * max(1.0, world_size / _RANKS_AT_SEAL_EVERY_S))

    def __post_init__(self) -> None:
        _check("sampling", parse_rules, self.sampling)
        for name, minimum in _MINIMUMS.items():
            if not getattr(self, name) >= minimum:
                raise ValueError(f"{name} must be at least {minimum}")
        _check("log_verbose", checked_ratio, self.log_verbose)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}")


def _check(name: str, check: Callable[[Any], object], value: object) -> None:
    """Validate a setting with its parser. Raises the parser's `ValueError` with the setting's name."""
    try:
        check(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


_RANKS_AT_SEAL_EVERY_S: Final = 1024

_MINIMUMS: Final[dict[str, float]] = {
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
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
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


def read_settings(arguments: Mapping[str, Any], environment: Mapping[str, str], warn: Warn) -> CaptureSettings:
    """Return the effective settings. Errors of a source are reported to `warn` and never raised.

    Parameters
    ----------
    arguments
        Arguments of `start` by name; None means that an argument is not set.
    environment
        Usually `os.environ`.
    warn
        Called with a topic and a text.
    """
    chosen: dict[str, Any] = {}
    for source, name, raw in _sources(arguments, environment, warn):
        kind = {field.name: field.type for field in fields(CaptureSettings)}.get(name)
        if kind is None:
            warn(f"{source}.{name}", f"unknown setting {name!r} in {source}{_hint(name)}; it is left out")
            for key in _KEYS:
                if f"'{key}'" in _hint(name):
                    chosen.setdefault(key, _UNUSABLE)
            continue
        try:
            value = _KINDS[kind](raw)
            CaptureSettings(**{name: value})
        except Exception as error:  # noqa: BLE001 - users pass any value
            warn(f"{source}.{name}", f"{name} in {source} is not usable ({type(error).__name__}: {error}) and left out")
            continue
        chosen[name] = value
    return CaptureSettings(**chosen)


def read_storage(uri: str, environment: Mapping[str, str], warn: Warn) -> dict[str, Any]:
    """Return fsspec's options for a spool, from ``[storage]`` in ``ranklake.toml``. Errors are reported to `warn`.

    References to secrets are resolved when an uploader connects.
    """
    file = _file(environment)
    try:
        section = tomllib.loads(file.read_text(encoding="utf-8-sig")).get("storage", {}) if file.is_file() else {}
        return deferred_options(uri, {name: str(value) for name, value in section.items()})
    except (OSError, ValueError, AttributeError, RanklakeError) as error:
        warn("storage", f"[storage] of {file} cannot be used ({type(error).__name__}: {error}) and is left out")
        return {}


def read_spool(environment: Mapping[str, str], warn: Warn) -> dict[str, str]:
    """Return ``uri`` and ``local`` of ``[spool]`` in ``ranklake.toml``, where set. Errors are reported to `warn`."""
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
            warn(f"[spool].{name}", f"unknown setting {name!r} in [spool] of {file}{hint and f' ({hint})'}; left out")
        elif not isinstance(values[name], str):
            warn(f"[spool].{name}", f"{name} in [spool] of {file} is not text and left out")
    return {name: value for name, value in values.items() if name in SPOOL_KEYS and isinstance(value, str)}


def _file(environment: Mapping[str, str]) -> Path:
    return Path(environment.get(CONFIG_VARIABLE) or "ranklake.toml")


def _mentions(key: str, file: Path) -> bool:
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
"""Arguments of other trackers, each with the equivalent here."""


def _hint(name: str) -> str:
    if name in _OTHER_TRACKERS:
        return f" ({_OTHER_TRACKERS[name]})"
    hint = did_you_mean(name, [field.name for field in fields(CaptureSettings)])
    return f" ({hint})" if hint else ""


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each variable of a setting with the setting's name. If two set the same one, the later counts."""
    yield from ((variable, name) for variable, name in PLACE_VARIABLES.items() if environment.get(variable))
    for variable in sorted(environment):
        if variable.startswith(PREFIX):
            yield variable, variable.removeprefix(PREFIX).lower()


def _sources(
    arguments: Mapping[str, Any], environment: Mapping[str, str], warn: Warn
) -> Iterator[tuple[str, str, Any]]:
    file = _file(environment)
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8-sig")) if file.is_file() else {}
        overlay = content.get("contracts", {}).get("overlay")
        if overlay is not None:
            yield f"[contracts] of {file}", "contracts_overlay", overlay
        for name, raw in content.get("masking", {}).items():  # an unknown key may be a misspelt `policy`
            yield f"[masking] of {file}", f"masking_{name}", raw
        for name, raw in content.get("capture", {}).items():
            yield f"[capture] of {file}", name, raw
    except (OSError, ValueError, AttributeError) as error:
        warn("ranklake.toml", f"{file} cannot be read ({error}); its settings are left out")
        for key in _KEYS:
            if _mentions(key.removesuffix("_policy"), file):
                yield f"[capture] of {file}", key, _UNUSABLE
    for variable, name in _variables(environment):
        yield "the environment", name, environment[variable]
    for name, raw in arguments.items():
        if raw is not None:
            yield "start()", name, raw
