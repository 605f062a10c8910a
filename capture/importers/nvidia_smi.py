"""NVIDIA SMI: converts the output of ``nvidia-smi`` and ``dcgmi dmon`` to rows of ``gpu_samples``.

- ``nvidia-smi --query-gpu=… --format=csv``, with or without units (``nounits``).
- ``nvidia-smi dmon -o DT``.
- ``dcgmi dmon``, which prints no time; a command such as ``ts '%F %T'`` has to add it.

``nvidia_smi.csv`` in this folder maps fields to columns. Sources: ``nvidia-smi --help-query-gpu``,
``nvidia-smi dmon --help``, ``dcgmi dmon -l``. Device memory in "MB" of dmon is in MiB, like NVML's numbers.

A file without times may have one sample of each device, which gets the time of the file's last change. With more
samples it is refused, because their times are unknown.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.source import SourceError
from ranklake.capture.importers.units import NOT_A_TIME, UNITS, conversion, quantity
from ranklake.capture.samplers.gpu_parts import clock_reasons
from ranklake.capture.samplers.sample import Reading
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import Column

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Line, Source

_DEVICES: Final = ("device_uuid", "pci_bus_id", "serial_number", "device_index")
_SMI_TIMES: Final = ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S", "iso")
_STAMP: Final = re.compile(r"\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\]?:?\s+(?=\S)")
_ENTITY: Final = re.compile(r"(GPU|GPU-I|GPU-CI|CPU|CPU_CORE|SWITCH|LINK|Switch|Link)[ :]+(\d+)(?:\s+|$)")
_UNKNOWN: Final = re.compile(r"-|N/A|\[.*\]|ERR!|Unknown Error", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_BOOLS: Final = {"enabled": True, "yes": True, "1": True, "disabled": False, "no": False, "0": False}
_HEADER_FIELD: Final = re.compile(r"([\w.]+)(?: \[(.+)\])?")
_TIMES_HINT: Final = {
    "smi": "add timestamp to --query-gpu",
    "dmon": "save it with: nvidia-smi dmon -o DT -f FILE",
    "dcgmi": "save it with: dcgmi dmon -e FIELDS | ts '%F %T'",
}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a tool: its column, and the unit of values without one."""

    column: Column
    unit: str

    def value(self, text: str, unit: str) -> Any:  # noqa: ANN401 - of the column's type
        """Convert a printed value to the column's unit and type; `unit` is the header's. Raises `ValueError`."""
        kind, name = self.column.type, self.column.name
        if kind == "bool":
            return _BOOLS[text.lower()]
        if name == "clock_event_reasons":
            return clock_reasons(int(text, 0))
        if kind == "string":
            return text
        if name == "performance_state":
            text = text.removeprefix("P")
        number, printed_unit = quantity(text) or (text, unit or self.unit)
        if not _NUMBER.fullmatch(number):
            raise ValueError
        factor = conversion(printed_unit, self.column.unit).factor if printed_unit else Fraction(1)
        exact = Fraction(number) * factor
        if not kind.startswith("int"):
            return float(exact)
        if exact.denominator != 1 and self.column.unit not in {"By", "ns"}:
            raise ValueError
        return round(exact)


@dataclass
class Sample:
    """A line with values.

    Attributes
    ----------
    at
        Time as printed; empty if there is none.
    values
        Values by the header's names.
    units
        Units in the header, by name.
    flaw
        Why the line cannot be read, without its values; empty if it can.
    """

    line: "Line"
    tool: str
    at: str = ""
    values: dict[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    flaw: str = ""


@dataclass(frozen=True, slots=True)
class Header:
    """Names of a file's columns, and units by name."""

    tool: str
    names: list[str]
    units: Mapping[str, str] = field(default_factory=dict)


@cache
def _fields(tool: str) -> dict[str, Field]:
    text = files("ranklake.capture.importers").joinpath("nvidia_smi.csv").read_text(encoding="utf-8")
    table = contract("gpu_samples")
    rows = (row for row in csv.DictReader(text.splitlines()) if row["tool"] == tool)
    return {row["field"]: Field(table.column(row["column"]), row["unit"]) for row in rows}


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import the output of a tool.

    Raises
    ------
    SourceError
        The file has no header, has several samples of a device without times, or lists processes.
    """
    changed_ns = _untimed_sample_ns(source)
    last_ns: dict[Any, int] = {}
    for sample in _samples(source):
        try:
            at_ns = _time_ns(sample, recording) if sample.at else changed_ns
            row = _row(sample)
        except ValueError as error:
            recording.refuse("gpu_samples", str(error), sample.line.text, sample.line.number)
            continue
        if left_out := sorted(sample.values.keys() - _fields(sample.tool).keys()):
            recording.notes[f"fields without a column in gpu_samples are left out: {', '.join(left_out)}"] = None
        device = next((row[name] for name in _DEVICES if row.get(name) is not None), None)
        if device is None:
            recording.notes["the samples do not name their device: add index to --query-gpu"] = None
        elif at_ns > last_ns.get(device, at_ns):
            row["interval_ns"] = at_ns - last_ns[device]
        last_ns[device] = at_ns
        recording.row("gpu_samples", at_ns, **row)


def _untimed_sample_ns(source: "Source") -> int:
    """Return the file's last change, ns since 1970, if some samples have no time, else 0.

    Raises `SourceError` if a device has several samples without a time.
    """
    untimed_devices: set[str] = set()
    with source.first_look():
        for sample in _samples(source):
            if sample.at or sample.flaw:
                continue
            names = [name for name, item in _fields(sample.tool).items() if item.column.name in _DEVICES]
            device = "\0".join(sample.values.get(name, "") for name in names)
            if device in untimed_devices:
                flaw = "several samples of one device have no time"
                raise SourceError(flaw, where=source.name, hint=_TIMES_HINT[sample.tool])
            untimed_devices.add(device)
    return source.changed_ms() * 10**6 if untimed_devices else 0


def _time_ns(sample: Sample, recording: "ImportedRun") -> int:
    """Return a sample's time, ns since 1970. Raises `ValueError` with a message for users."""
    forms = {"smi": _SMI_TIMES, "dmon": ("%Y%m%d %H:%M:%S", "iso"), "dcgmi": ("iso",)}[sample.tool]
    flaw = NOT_A_TIME
    for form in forms:
        try:
            return recording.moment_ns(sample.at, form)
        except ValueError as error:
            flaw = max(flaw, str(error), key=lambda text: text != NOT_A_TIME)
    raise ValueError(flaw)


def _row(sample: Sample) -> dict[str, Any]:
    """Return a sample's columns. Raises `ValueError` with a message for users."""
    if sample.flaw:
        raise ValueError(sample.flaw)
    reading = Reading(source="dcgm" if sample.tool == "dcgmi" else "nvml")
    for name, item in _fields(sample.tool).items():
        text = sample.values.get(name, "")
        if not text or reading.columns.get(item.column.name) is not None:
            continue
        if _UNKNOWN.fullmatch(text):
            reason = text.strip("[]").lower() if text.startswith("[") else "not available"
            reading.unavailable[item.column.name] = "not available" if reason == "n/a" else reason
            continue
        try:
            reading.columns[item.column.name] = item.value(text, sample.units.get(name, ""))
        except (ValueError, KeyError, OverflowError) as error:
            flaw = f"{name}: not a value"
            raise ValueError(flaw) from error
    if len(reading.columns) == 1 and not reading.unavailable:
        flaw = "no field has a column"
        raise ValueError(flaw)
    return reading.row()


def _samples(source: "Source") -> Iterator[Sample]:
    """Yield the lines with values. Raises `SourceError` for values before a header."""
    header: Header | None = None
    for line in source.lines():
        stamp, text = _stamp(line.text)
        if line.flaw:
            yield Sample(line, header.tool if header else "smi", flaw=line.flaw)
        elif not text or text.split()[0].lower() == "id":  # units
            continue
        elif text.startswith("#") or (smi_header := _smi_header(text)) is not None:
            header = (_table_header(text, source) or header) if text.startswith("#") else smi_header
        elif header is not None:
            parse = _csv_sample if header.tool == "smi" else _table_sample
            yield parse(line, header, stamp, text)
        elif "nvidia-smi" not in text and "dcgmi" not in text:  # else a copied command line
            hint = "save it without noheader, or add the fields of --query-gpu as the first line"
            raise SourceError("the values have no header", where=source.name, hint=hint)


def _stamp(text: str) -> tuple[str, str]:
    """Split a line into a collector's time, empty if there is none, and the rest."""
    match = _STAMP.match(text.strip())
    return (match[1].replace(",", "."), text.strip()[match.end() :]) if match else ("", text.strip())


def _table_header(text: str, source: "Source") -> Header | None:
    """Return the header in a line that begins with #; None for units. Raises `SourceError` for a table of processes."""
    words = text.lstrip("#").split()
    if "pid" in words:
        hint = "save samples of devices: nvidia-smi dmon -o DT -f FILE"
        raise SourceError("is a table of processes of nvidia-smi pmon", where=source.name, hint=hint)
    if words[:1] == ["Entity"]:
        return Header("dcgmi", words[1:])
    return Header("dmon", words) if "gpu" in words else None


def _smi_header(text: str) -> Header | None:
    """Return the header in a line of CSV; None if it is no header."""
    parts = [_HEADER_FIELD.fullmatch(part.strip()) for part in text.split(",")]
    names = [part[1] for part in parts if part]
    fields = {*_fields("smi"), "timestamp"}
    if len(names) < len(parts) or not fields.intersection(names) or len({*names}) < len(names):
        return None
    return Header("smi", names, {part[1]: part[2] for part in parts if part and part[2] in UNITS})


def _csv_sample(line: "Line", header: Header, _: str, text: str) -> Sample:
    """Return the sample of a line of CSV."""
    values = [part.strip() for part in text.split(",")]
    if len(values) != len(header.names):
        return Sample(line, "smi", flaw=f"{len(values)} fields instead of {len(header.names)}")
    named = dict(zip(header.names, values, strict=True))
    return Sample(line, "smi", named.pop("timestamp", ""), named, header.units)


def _table_sample(line: "Line", header: Header, stamp: str, text: str) -> Sample:
    """Return the sample of a line whose columns are separated by blanks; `stamp` is a collector's time."""
    named: dict[str, str] = {}
    if header.tool == "dcgmi":
        entity = _ENTITY.match(text)
        if entity is None or entity[1] != "GPU":
            flaw = "not a line of a device" if entity is None else f"the line of a {entity[1]} does not name its device"
            return Sample(line, header.tool, flaw=flaw)
        text, named["index"] = text[entity.end() :], entity[2]
    values = text.split()
    if len(values) != len(header.names):
        return Sample(line, header.tool, flaw=f"{len(values)} columns instead of {len(header.names)}")
    named |= zip(header.names, values, strict=True)
    day, clock = named.pop("Date", "").replace("/", ""), named.pop("Time", "")
    return Sample(line, header.tool, f"{day} {clock}" if day and clock else stamp, named)


FORMAT: Final = Format(
    summary="nvidia-smi --query-gpu, nvidia-smi dmon, dcgmi dmon",
    recognises="a header of --query-gpu's fields, or one that begins with # gpu, #Date or #Entity",
    read=read,
    table="gpu_samples",
    mark=re.compile(
        rb"^(?:[\w.]+(?: \[[^\]\n]+\])?, *)*(?:utilization\.\w+|memory\.(?:used|total|free)|power\.draw[\w.]*|"
        rb"temperature\.\w+|clocks[\w.]*|pci\.bus_id|pcie\.[\w.]+|fan\.speed)(?: \[[^\]\n]+\])?(?: *,[^\n]*)?\r?$|"
        rb"^(?:\[?[\d: T.,-]+\]?:? *)?#\s*"
        rb"(?:Entity\b|(?:Date\s+)?(?:Time\s+)?gpu\s+(?:pwr|temp|sm|mclk|fb|pid|gract)\b)",
        re.MULTILINE,
    ),
    zoned=True,
    own_run=False,
    by_file=True,
    by_name=True,
)
