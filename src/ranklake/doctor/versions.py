"""Probes of versions: what is installed, checked against what the package asks for and what it was tested with.

Bounds stand in the package's own metadata (``pyproject.toml``), the tested versions in ``constraints.txt``, which is
shipped with it. Neither is copied here.
"""

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from typing import Final

from ranklake.doctor.examination import Finding, Patient, failed, not_known, ok, skipped, warning

Release = tuple[int, ...]
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*([^;]*)")
_BOUND: Final = re.compile(r"(>=|<=|==|!=|<|>)\s*([0-9][^,\s]*)")
_HOLDS: Final = {
    ">=": lambda version, bound: version >= bound,
    "<=": lambda version, bound: version <= bound,
    "==": lambda version, bound: version == bound,
    "!=": lambda version, bound: version != bound,
    "<": lambda version, bound: version < bound,
    ">": lambda version, bound: version > bound,
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which versions are taken, such as ``>=1.6.6,<1.7``."""

    text: str

    def has(self, version: str) -> bool:
        """Whether a version is one of them."""
        return all(
            _HOLDS[sign](*_padded(release(version), release(bound))) for sign, bound in _BOUND.findall(self.text)
        )


def release(version: str) -> Release:
    """Return the numbers with which a version begins: ``26.0.1rc1`` gives (26, 0, 1)."""
    result = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in result[0].split(".")) if result else ()


def _padded(release: Release, other: Release) -> tuple[Release, Release]:
    length = max(len(release), len(other))
    return release + (0,) * (length - len(release)), other + (0,) * (length - len(other))


@cache
def required_versions() -> Mapping[str, Bounds]:
    """Return the bounds that the package's metadata names, by distribution; of one that is named twice both hold."""
    result: dict[str, str] = {}
    for line in metadata.requires("ranklake") or ():
        named = _REQUIREMENT.match(line)
        if named and _BOUND.search(named[2]):
            result[_plain(named[1])] = ",".join(filter(None, [result.get(_plain(named[1]), ""), named[2].strip(" ()")]))
    return {name: Bounds(",".join(sorted(set(text.split(",")), reverse=True))) for name, text in result.items()}


@cache
def tested_versions() -> Mapping[str, str]:
    """Return the versions that the tests ran with, by distribution; empty where the list was not shipped."""
    try:
        text = resources.files("ranklake").joinpath("constraints.txt").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.split("#")[0].strip().partition("==") for line in text.splitlines())
    return {_plain(name): version for name, sign, version in pairs if sign}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def python(patient: Patient) -> Iterator[Finding]:
    """Check whether this Python is one that the package takes."""
    del patient
    bounds, result = Bounds(metadata.metadata("ranklake")["Requires-Python"] or ""), platform.python_version()
    if bounds.has(result):
        yield ok(result)
    else:
        yield failed(f"Python {result} is not {bounds.text}", f"install Python {bounds.text}, and ranklake in it")


def pyarrow(patient: Patient) -> Iterator[Finding]:
    """Check whether pyarrow, which every segment and table is read and written with, is one that was tested."""
    del patient
    yield _findings_of(("pyarrow",), needed=True)


def delta_engine(patient: Patient) -> Iterator[Finding]:
    """Say it of deltalake and datafusion, which talk over an interface that changes: they move together."""
    del patient
    yield _findings_of(("deltalake", "datafusion"))


def great_expectations(patient: Patient) -> Iterator[Finding]:
    """Say it of what judges checks."""
    del patient
    yield _findings_of(("great-expectations", "pandas"))


def dask(patient: Patient) -> Iterator[Finding]:
    """Say it of Dask."""
    del patient
    yield _findings_of(("dask", "distributed"))


def prefect(patient: Patient) -> Iterator[Finding]:
    """Say it of Prefect, and of FastAPI and SQLAlchemy, which Prefect's server stands on and does not pin."""
    del patient
    yield _findings_of(("prefect", "fastapi", "sqlalchemy"))


def torch(patient: Patient) -> Iterator[Finding]:
    """Say it of torch, where it is."""
    del patient
    result = _findings_of(("torch",))
    yield warning(result.what, result.remedy) if result.state == "failed" else result


def _findings_of(names: tuple[str, ...], *, needed: bool = False) -> Finding:
    """Return what is to be said of distributions that belong together."""
    there = {name: version for name in names if (version := _installed_version(name))}
    if not there and not needed:
        return skipped(f"{' and '.join(names)} not installed")
    bounds, known = required_versions(), tested_versions()
    names = tuple(name for name in names if name in bounds)  # an editable installation may be older than the code
    there = {name: there[name] for name in names if name in there}
    if not there:
        return not_known("the package's metadata names no versions", "install ranklake again")
    install = "pip install " + " ".join(f"'{name}{bounds[name].text}'" for name in names)
    wrong = [f"{name} {there[name]} is not {bounds[name].text}" for name in there if not bounds[name].has(there[name])]
    wrong += [f"{name} is missing" for name in names if name not in there]
    if wrong:
        return failed(", ".join(wrong), install)
    newer = [name for name in names if name in known and release(there[name])[:1] > release(known[name])[:1]]
    if newer:
        message = ", ".join(f"{name} {there[name]} is newer than {known[name]}, which was tested" for name in newer)
        return warning(
            message, "pip install " + " ".join(f"'{name}=={known[name]}'" for name in names if name in known)
        )
    return ok(", ".join(f"{name} {version}{_as_tested(version, known.get(name))}" for name, version in there.items()))


def _installed_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _as_tested(version: str, known: str | None) -> str:
    return "" if known is None or release(known) == release(version) else f" (tested with {known})"
