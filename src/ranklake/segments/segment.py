"""A segment: its name and its footer.

A segment is one Parquet file of rows of one table, recorded by one incarnation (process) of one rank, encrypted or not.
Capture writes it, ingest reads it; this module is shared by both.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from ranklake.errors import RanklakeError

FORMAT: Final = 1
METADATA_KEY: Final = b"ranklake"
REFUSED, REFUSED_ROW = "refused", "refused_row"
"""Additional columns in segments of rows that an importer could not convert: a reason of the table ``rejects``, and the
foreign row as text. Ingest writes such rows there; their other columns may be NULL or missing."""
IDENTITY: Final = ("run", "attempt", "rank", "incarnation", "segment")
"""Columns that a segment lacks, since its name and footer have their values. Segments of several ranks have
``rank``."""
CONSTANT_CHARACTERS: Final = 256
"""Longest text that a footer has instead of a column."""
SAMPLED_OUT: Final = "sampled out"
"""Reason in a footer's gaps for rows that the user omitted by sampling."""
DATES_PER_SEGMENT: Final = 1_000
"""The most UTC dates that an importer puts into one segment, and that ingest takes from one unless told otherwise."""
RUN_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_NAME: Final = re.compile(
    r"(?P<run>[A-Za-z0-9._-]{1,128})~a(?P<attempt>\d{1,9})~r(?P<rank>\d{1,9})~(?P<incarnation>[0-9a-f]{16})"
    r"~(?P<segment>\d{6,9})~(?P<rows>\d{1,10})~(?P<sha256>[0-9a-f]{64})(?:\.parquet|\.(?P<key>[0-9a-f]{8})\.enc)",
    re.ASCII,
)
_INCARNATIONS: Final = 2**63

STREAM_NAME: Final = re.compile(
    r"(?P<run>[A-Za-z0-9._-]{1,128})~a(?P<attempt>[0-9]{1,9})~r(?P<rank>[0-9]{1,9})~(?P<incarnation>[0-7][0-9a-f]{15})"
    r"(?:~(?P<segment>[0-9]{6,9})(?:~.*)?)?$"
)
"""A segment's name, or its beginning, which identifies a stream or a slot file."""


class NotASegmentError(RanklakeError):
    """A file whose name or footer is not a segment's."""


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """The facts in a segment's file name.

    Attributes
    ----------
    run, attempt, rank
        Run, attempt and rank of its rows.
    incarnation
        Random positive 63-bit number of the recording process.
    segment
        Number of the slot file, from 0, counted per incarnation and table.
    rows
        Number of rows, known even if its bytes are not readable.
    sha256
        Lower-case hex digest of the file's bytes.
    key_id
        Id of the file's encryption key (see `ranklake.segments.envelope`); empty if it is not encrypted.
    """

    run: str
    attempt: int
    rank: int
    incarnation: int
    segment: int
    rows: int
    sha256: str
    key_id: str = ""

    def __str__(self) -> str:
        ending = f"{self.key_id}.enc" if self.key_id else "parquet"
        return f"{self.stem}~{self.sha256}.{ending}"

    @property
    def stem(self) -> str:
        """The name up to the digest."""
        return f"{self.run}~a{self.attempt}~r{self.rank:05d}~{self.incarnation:016x}~{self.segment:06d}~{self.rows}"

    def bond(self, table: str) -> bytes:
        """Return the bond of an encrypted segment's bytes."""
        return f"{table}/{self.stem}".encode()

    @classmethod
    def parse(cls, name: str) -> "SegmentName":
        """Read a file name (no folders). Raises `NotASegmentError` if it is not a segment's.

        Only the canonical spelling of a name is accepted.
        """
        match = _NAME.fullmatch(name)
        if not match:
            raise NotASegmentError("not a segment's name", where=name)
        facts = cls(
            run=match["run"],
            attempt=int(match["attempt"]),
            rank=int(match["rank"]),
            incarnation=int(match["incarnation"], 16),
            segment=int(match["segment"]),
            rows=int(match["rows"]),
            sha256=match["sha256"],
            key_id=match["key"] or "",
        )
        if facts.incarnation >= _INCARNATIONS or str(facts) != name:
            raise NotASegmentError("not a segment's name", where=name)
        return facts


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The kernel's clock state at a time; None for unknown values.

    Attributes
    ----------
    mono_ns
        Monotonic time, that of an anchor.
    offset_ns
        Remaining correction of the wall clock.
    max_error_ns, est_error_ns
        Bound and estimate of the wall clock's error.
    synchronised
        1 if the wall clock follows a source, 0 if not.
    suspended_ns
        Time since boot during which the monotonic clock was stopped. If it grows between two anchors, the machine slept
        in between, and wall times between them are uncertain.
    """

    mono_ns: int
    offset_ns: int | None = None
    max_error_ns: int | None = None
    est_error_ns: int | None = None
    synchronised: int | None = None
    suspended_ns: int | None = None


@dataclass(frozen=True, slots=True)
class SegmentFooter:
    """The footer of a segment, as JSON under the Parquet key ``ranklake``.

    Attributes
    ----------
    table, contract_version
        The contract by which the rows were written.
    run, attempt, rank, world_size, incarnation, segment
        Origin of the rows; as in the name.
    added_version
        Version of the columns that an overlay adds to a table of ours; not in the JSON if it is the first.
    ranks
        Least and greatest rank, if an import combined rows of several ranks: then the name's rank is 0, and
        `incarnation` is the file's. Empty, and not in the JSON, if all rows are of `rank`.
    rows, gaps
        Number of rows in this segment; and of rows that could not be recorded, by reason.
    rows_before, gaps_before
        The sums of both over all earlier segments of this incarnation and table.
    anchors
        Pairs (monotonic ns, wall ns since 1970) that wall times were computed from.
    clock
        The first and the last `ClockReading` at these anchors, each as the list of its fields in order.
    boot_id
        The kernel's id of the boot whose monotonic clock it is; empty if unknown. Processes with the same id share a
        monotonic clock.
    final
        True for the last segment of an incarnation and table, if that was known when sealing.
    totals
        In the last ``events`` segment of an incarnation, ``{table: [rows, gaps]}`` of all its segments; else empty.
    writer
        Name and version of the software that sealed it.
    key_id
        Id of the file's encryption key; empty if it is not encrypted.
    constants
        ``{type: {column: value}}``: columns with one value in all rows, which the file lacks; types as in contracts.
        Numbers are finite. Not in the JSON if empty.
    signer, mac
        Id of the signing key, and the MAC in hex (`ranklake.segments.envelope`); both empty, and not in the JSON, if
        unsigned.
    """

    table: str
    contract_version: int
    run: str
    attempt: int
    rank: int
    world_size: int
    incarnation: int
    segment: int
    rows: int
    rows_before: int = 0
    gaps: dict[str, int] = field(default_factory=dict)
    gaps_before: int = 0
    anchors: list[list[int]] = field(default_factory=list)
    clock: list[list[int | None]] = field(default_factory=list)
    boot_id: str = ""
    final: bool = False
    totals: dict[str, list[int]] = field(default_factory=dict)
    writer: str = ""
    key_id: str = ""
    signer: str = ""
    mac: str = ""
    ranks: list[int] = field(default_factory=list)
    added_version: int = 1
    constants: dict[str, dict[str, Any]] = field(default_factory=dict)
    format: int = FORMAT

    def clock_readings(self) -> list[ClockReading]:
        """Return the kernel's clock readings; empty in footers of earlier writers."""
        return [ClockReading(*fields) for fields in self.clock]  # type: ignore[arg-type]  # the first is never None

    def to_json(self) -> bytes:
        """Return the footer's JSON, keys sorted, so that equal footers have equal bytes."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if not self.signer:
            del facts["signer"], facts["mac"]
        for name in ("ranks", "constants"):
            if not facts[name]:
                del facts[name]
        if self.added_version == 1:
            del facts["added_version"]
        return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, raw: bytes) -> "SegmentFooter":
        """Read a footer; unknown keys of a later minor writer are ignored. Raises `NotASegmentError`."""
        try:
            return cls.from_facts(json.loads(raw))
        except (ValueError, AttributeError) as error:
            raise NotASegmentError("the footer is not a segment's", hint=str(error)) from error

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> "SegmentFooter":
        """Return the footer from its JSON. Raises `NotASegmentError`."""
        if not facts.keys() <= cls.__dataclass_fields__.keys():
            facts = {key: facts[key] for key in cls.__dataclass_fields__ if key in facts}
        try:
            footer = cls(**facts)
        except TypeError as error:
            raise NotASegmentError("the footer is not a segment's", hint=str(error)) from error
        if footer.format != FORMAT:
            raise NotASegmentError(f"segment format {footer.format} is not {FORMAT}", hint="upgrade ranklake")
        return footer


AGENT_JOB: Final = "ranklake-agent"
"""Job of an agent's run."""


def is_agent_run(run: str) -> bool:
    """Whether a run is an agent's: rollups, counts and costs of runs leave it out.

    >>> is_agent_run("ranklake-agent-node7-20260301T120000.000000")
    True
    >>> is_agent_run("ranklake-agents")
    False
    """
    return run.startswith(f"{AGENT_JOB}-")


_ADJECTIVES: Final = (
    *("able", "amber", "ample", "brave", "brief", "bright", "brisk", "broad", "calm", "civil", "clear", "clever"),
    *("coral", "crisp", "curly", "daily", "deep", "eager", "early", "easy", "even", "fair", "fancy", "fast"),
    *("fine", "firm", "fleet", "fond", "fresh", "full", "gentle", "glad", "golden", "grand", "green", "happy"),
    *("hardy", "honest", "jolly", "keen", "kind", "large", "light", "lively", "loyal", "lucky", "mellow", "merry"),
    *("mild", "neat", "noble", "plain", "proud", "quick", "quiet", "rapid", "ready", "rosy", "shiny", "silent"),
    *("smart", "solid", "steady", "sunny"),
)
_NOUNS: Final = (
    *("acorn", "alder", "aspen", "badger", "bay", "beaver", "birch", "bison", "brook", "canyon", "cedar", "cliff"),
    *("cloud", "comet", "coral", "crane", "creek", "delta", "dune", "eagle", "elm", "falcon", "fern", "finch"),
    *("fjord", "forest", "fox", "garden", "glade", "grove", "harbor", "hare", "heron", "hill", "ibis", "island"),
    *("lake", "lark", "lynx", "maple", "marsh", "meadow", "mesa", "moon", "moss", "oak", "ocean", "orchid"),
    *("osprey", "otter", "owl", "pine", "pond", "prairie", "reef", "river", "robin", "sparrow", "spruce", "star"),
    *("stone", "tide", "valley", "willow"),
)
_NUMBERS: Final = 1000


def readable_name(run: str) -> str:
    """Return an adjective, a noun and a number for a run's id, such as ``brisk-otter-417``.

    Two of a thousand runs have the same name with a probability of an eighth; the id tells them apart.
    """
    drawn = int.from_bytes(hashlib.sha256(f"readable {run}".encode("utf-8", "replace")).digest()[:8], "big")
    drawn, number = divmod(drawn, _NUMBERS)
    drawn, noun = divmod(drawn, len(_NOUNS))
    return f"{_ADJECTIVES[drawn % len(_ADJECTIVES)]}-{_NOUNS[noun]}-{number}"
