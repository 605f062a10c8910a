"""Configuration: ``ranklake.toml``, then the environment, then options; the later wins.

``RANKLAKE_CONFIG`` names the file (default: ``ranklake.toml`` in the current folder, if there is one). An unknown key
is an error, never ignored: a misspelt retention path would otherwise keep data that should go.

A key is declared once, as a field of its section. Its type, its default, its check and the variable that overrides it
all come from there; what uses it reads it from the `Config` or, in a room, from what `ranklake.context` opens.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Self

from ranklake.capture.common.settings import PREFIX, Settings
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.plans.dask_section import DaskSection
from ranklake.lake.trust.lake_config import AuditSection, CostSection, LakeConfig, PlansSection, SpoolSection
from ranklake.lake.trust.limits import Limits
from ranklake.lake.trust.writers import Prefix


class ConfigError(RanklakeError):
    """A configuration file or value that cannot be used."""


@dataclass(frozen=True, slots=True)
class LakeSection:
    """Where the governed tables are."""

    uri: str = field(default="", metadata={"variable": "RANKLAKE_LAKE"})
    """Folder or object-store URI of the lake; overridden by ``--lake``, too."""


@dataclass(frozen=True, slots=True)
class ContractsSection:
    """Your own tables, columns and metrics."""

    overlay: str = ""
    """Folder of contract files that extend the packaged ones."""


@dataclass(frozen=True, slots=True)
class SqlSection:
    """Who may query what."""

    roles: str = ""
    """Role file, for ``ranklake sql --role``; see `ranklake.lake.query.roles`. Empty: there are no roles."""


@dataclass(frozen=True, slots=True)
class ArtifactsSection:
    """Which locations that ranks recorded commands may open."""

    allow: tuple[str, ...] = ()
    """Folders and URIs such as ``s3://checkpoints/prod``, and everything below them. Locations named on the command
    line, the lake and the spool are always allowed."""


@dataclass(frozen=True, slots=True)
class RetentionSection:
    """How long each retention class is kept."""

    policies: str = ""
    """Policy file; empty means the packaged ``retention/policies.yaml``."""


@dataclass(frozen=True, slots=True)
class Config:
    """One section each; ``storage`` is handed to fsspec and delta-rs alike, key by key."""

    lake: LakeSection = field(default_factory=LakeSection)
    spool: SpoolSection = field(default_factory=SpoolSection)
    dask: DaskSection = field(default_factory=DaskSection)
    contracts: ContractsSection = field(default_factory=ContractsSection)
    retention: RetentionSection = field(default_factory=RetentionSection)
    sql: SqlSection = field(default_factory=SqlSection)
    cost: CostSection = field(default_factory=CostSection)
    audit: AuditSection = field(default_factory=AuditSection)
    ingest: Limits = field(default_factory=Limits)
    artifacts: ArtifactsSection = field(default_factory=ArtifactsSection)
    plans: PlansSection = field(default_factory=PlansSection)
    capture: Settings = field(default_factory=Settings)
    storage: dict[str, str] = field(default_factory=dict, repr=False)
    """Object-store options under delta-rs's names, such as ``aws_endpoint_url``. Leave credentials to the default
    provider chain, or name where they are: ``file:/path``, ``env:NAME`` or ``command:/path/to/helper``."""
    file: str = ""
    """The file that was read, as an absolute path; empty if there is none."""

    @property
    def lake_config(self) -> LakeConfig:
        """What whoever opens the lake or the spool goes by: all sections that the two have in common, and the keys."""
        shared = {item.name: getattr(self, item.name) for item in fields(LakeConfig) if item.name in _SECTIONS}
        spools = (self.spool.uri,) if self.spool.uri else ()
        return LakeConfig(**shared, encryption_key=self.capture.encryption_key, spools=spools)

    @property
    def overlay(self) -> Path | None:
        """Folder of the operator's own contracts, if there is one."""
        return Path(self.contracts.overlay) if self.contracts.overlay else None

    def uri_of(self, noun: str) -> str:
        """Return the URI of the ``lake`` or the ``spool``. Raises `ConfigError` if there is none."""
        uri: str = getattr(self, noun).uri
        if not uri:
            mend = f"pass --{noun} URI, set RANKLAKE_{noun.upper()}, or write uri under [{noun}] in ranklake.toml"
            raise ConfigError(f"no {noun} configured", mend=mend)
        return uri

    def overridden(self, given: Mapping[str, object]) -> Self:
        """Return the configuration with some keys replaced: values by ``section.key``. An empty one changes nothing."""
        sections: dict[str, Any] = {}
        for place, value in given.items():
            name, _, key = place.partition(".")
            if value:
                sections[name] = replace(sections.get(name, getattr(self, name)), **{key: value})
        return replace(self, **sections)


_SECTIONS: dict[str, Any] = {
    item.name: item.default_factory for item in fields(Config) if is_dataclass(item.default_factory)
}
_TAKES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "bool": (bool,), "tuple": (list, tuple)}
_TABLES: dict[str, type] = {"prefixes": Prefix}
"""Keys under which tables stand, and what each of them is; under others stands text."""


def load_config(path: Path | None = None) -> Config:
    """Read the configuration file, if any, and the environment. Raises `ConfigError`."""
    named = path or (Path(os.environ["RANKLAKE_CONFIG"]) if os.environ.get("RANKLAKE_CONFIG") else None)
    if named is not None and not named.is_file():
        raise ConfigError(
            "no such configuration file", where=str(named), mend="unset RANKLAKE_CONFIG or write the file"
        )
    file = named or Path("ranklake.toml")
    try:
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not valid TOML: {error}", where=str(file), mend="mend the line named") from error
    sections: dict[str, Any] = {}
    for name, body in raw.items():
        if not isinstance(body, dict) and name in {*_SECTIONS, "storage"}:
            raise ConfigError(
                f"{name} must be a section, not {type(body).__name__}",
                where=_place(file, text, re.escape(name)),
                mend=f"write [{name}] in a line of its own, and its keys below",
            )
        if not isinstance(body, dict):
            raise ConfigError(
                f"{name!r} stands outside a section",
                where=_place(file, text, re.escape(name)),
                mend="put it under a [section]",
            )
        if name == "storage":
            sections[name] = {key: str(value) for key, value in body.items()}
            continue
        if name not in _SECTIONS:
            hint = did_you_mean(name, [*_SECTIONS, "storage"])
            raise ConfigError(f"unknown section [{name}]", where=_place(file, text, rf"\[{re.escape(name)}"), mend=hint)
        sections[name] = _section(name, body, file, text)
    found = Config(**sections, file=str(file.absolute()) if file.is_file() else "")
    return found.overridden(_from_environment())


def _section(name: str, body: dict[str, Any], file: Path, text: str) -> object:
    return _filled(_SECTIONS[name], name, body, file, text)


def _filled(kind: Any, name: str, body: dict[str, Any], file: Path, text: str) -> object:  # noqa: ANN401 - a section's
    filled: dict[str, Any] = {}
    known = {item.name: item for item in fields(kind)}
    for key, value in body.items():
        where = _place(file, text, re.escape(key))
        if key not in known:
            raise ConfigError(f"unknown key {key!r} in [{name}]", where=where, mend=did_you_mean(key, known))
        expected = _TAKES.get(str(getattr(known[key].type, "__name__", "")), (str,))
        if not isinstance(value, expected) or isinstance(value, bool) is not (bool in expected):
            raise ConfigError(f"{name}.{key} must be {expected[0].__name__}, not {type(value).__name__}", where=where)
        if isinstance(value, int) and value < 0:
            raise ConfigError(f"{name}.{key} must not be negative", where=where)
        filled[key] = _listed(name, key, value, file, text) if isinstance(value, list) else value
        try:
            kind(**{key: filled[key]})
        except ValueError as error:
            raise ConfigError(f"{name}.{error}", where=where) from error
    return kind(**filled)


def _listed(name: str, key: str, items: list[Any], file: Path, text: str) -> tuple[object, ...]:
    """Return what a list holds: tables of a kind, or text."""
    expected = dict if key in _TABLES else str
    where = _place(file, text, re.escape(key))
    if not all(isinstance(item, expected) for item in items):
        raise ConfigError(f"{name}.{key} must be a list of {expected.__name__}", where=where)
    if expected is str:
        return tuple(items)
    return tuple(_filled(_TABLES[key], f"{name}.{key}", item, file, text) for item in items)


def _place(file: Path, text: str, needle: str) -> str:
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(rf"\s*{needle}\b", line):
            return f"{file}:{number}"
    return str(file)


def _from_environment() -> dict[str, object]:
    """Return what variables say, by ``section.key``."""
    found = {
        f"{name}.{item.name}": item.metadata["variable"]
        for name, kind in _SECTIONS.items()
        for item in fields(kind)
        if "variable" in item.metadata
    }
    found |= {f"capture.{key}": f"{PREFIX}{key.upper()}" for key in ("encryption_key", "signing_key")}
    return {place: os.environ.get(variable, "") for place, variable in found.items()}
