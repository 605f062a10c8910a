"""Probes of installed versions, against those that the package requires and those that it was tested with.

The package's metadata (``pyproject.toml``) has the required bounds, and the shipped ``constraints.txt`` the tested
versions.
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
    """A range of supported versions, such as ``>=1.6.6,<1.7``."""

    text: str

    def has(self, version: str) -> bool:
        """Whether a version lies in the range."""
        return all(
            _HOLDS[sign](*_padded(release_numbers(version), release_numbers(bound)))
            for sign, bound in _BOUND.findall(self.text)
        )


def release_numbers(version: str) -> Release:
    """Return the numbers with which a version begins: ``26.0.1rc1`` gives (26, 0, 1)."""
    result = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in result[0].split(".")) if result else ()


def _padded(release: Release, other: Release) -> tuple[Release, Release]:
    length = max(len(release), len(other))
    return release + (0,) * (length - len(release)), other + (0,) * (length - len(other))


@cache
def required_versions() -> Mapping[str, Bounds]:
    """Return the bounds in the package's metadata, by distribution. Bounds of a repeated distribution are combined."""
    result: dict[str, str] = {}
    for line in metadata.requires("ranklake") or ():
        named = _REQUIREMENT.match(line)
        if named and _BOUND.search(named[2]):
            result[_plain(named[1])] = ",".join(filter(None, [result.get(_plain(named[1]), ""), named[2].strip(" ()")]))
    return {name: Bounds(",".join(sorted(set(text.split(",")), reverse=True))) for name, text in result.items()}


@cache
def tested_versions() -> Mapping[str, str]:
    """Return the versions that the tests ran with, by distribution; empty if the list was not shipped."""
    try:
        text = resources.files("ranklake").joinpath("constraints.txt").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.split("#")[0].strip().partition("==") for line in text.splitlines())
    return {_plain(name): version for name, sign, version in pairs if sign}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def python(patient: Patient) -> Iterator[Finding]:
    """Check that the package supports this version of Python."""
    del patient
    bounds, result = Bounds(metadata.metadata("ranklake")["Requires-Python"] or ""), platform.python_version()
    if bounds.has(result):
        yield ok(result)
    else:
        yield failed(f"Python {result} is not {bounds.text}", f"install Python {bounds.text}, and ranklake in it")


def pyarrow(patient: Patient) -> Iterator[Finding]:
    """Check the version of pyarrow, which reads and writes every segment and table."""
    del patient
    yield _versions_finding(("pyarrow",), needed=True)


def delta_engine(patient: Patient) -> Iterator[Finding]:
    """Check deltalake and datafusion, which share an unstable interface and so have to be upgraded together."""
    del patient
    yield _versions_finding(("deltalake", "datafusion"))


def great_expectations(patient: Patient) -> Iterator[Finding]:
    """Check Great Expectations and pandas, which evaluate checks."""
    del patient
    yield _versions_finding(("great-expectations", "pandas"))


def dask(patient: Patient) -> Iterator[Finding]:
    """Check Dask."""
    del patient
    yield _versions_finding(("dask", "distributed"))


def prefect(patient: Patient) -> Iterator[Finding]:
    """Check Prefect, and FastAPI and SQLAlchemy, which Prefect's server needs and does not pin."""
    del patient
    yield _versions_finding(("prefect", "fastapi", "sqlalchemy"))


def torch(patient: Patient) -> Iterator[Finding]:
    """Check torch, if it is installed."""
    del patient
    result = _versions_finding(("torch",))
    yield warning(result.what, result.remedy) if result.state == "failed" else result


def _versions_finding(names: tuple[str, ...], *, needed: bool = False) -> Finding:
    """Return one finding for distributions that have to fit each other."""
    installed = {name: version for name in names if (version := _installed_version(name))}
    if not installed and not needed:
        return skipped(f"{' and '.join(names)} not installed")
    bounds, tested = required_versions(), tested_versions()
    names = tuple(name for name in names if name in bounds)  # an editable installation may be older than the code
    installed = {name: installed[name] for name in names if name in installed}
    if not installed:
        return not_known("the package's metadata names no versions", "install ranklake again")
    install = "pip install " + " ".join(f"'{name}{bounds[name].text}'" for name in names)
    wrong = [
        f"{name} {version} is not {bounds[name].text}"
        for name, version in installed.items()
        if not bounds[name].has(version)
    ]
    wrong += [f"{name} is missing" for name in names if name not in installed]
    if wrong:
        return failed(", ".join(wrong), install)
    newer = [
        name
        for name in names
        if name in tested and release_numbers(installed[name])[:1] > release_numbers(tested[name])[:1]
    ]
    if newer:
        message = ", ".join(
            f"{name} {installed[name]} is newer than {tested[name]}, which was tested" for name in newer
        )
        return warning(
            message, "pip install " + " ".join(f"'{name}=={tested[name]}'" for name in names if name in tested)
        )
    return ok(
        ", ".join(f"{name} {version}{_tested_text(version, tested.get(name))}" for name, version in installed.items())
    )


def _installed_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _tested_text(version: str, tested: str | None) -> str:
    is_same = tested is None or release_numbers(tested) == release_numbers(version)
    return "" if is_same else f" (tested with {tested})"
