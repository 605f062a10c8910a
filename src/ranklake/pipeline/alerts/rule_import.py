"""Translates rule files of Prometheus to rules of alerts; reports each other alert with its line and reason."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from ranklake.operator_files import KeyPath, OperatorFile
from ranklake.pipeline.alerts.file import AlertFileError
from ranklake.pipeline.alerts.promql import PromqlError, seconds_of, sql_of

_SEVERITIES: Final = {
    **dict.fromkeys(("critical", "page", "emergency"), "critical"),
    **dict.fromkeys(("error", "high", "major"), "error"),
    **dict.fromkeys(("warning", "warn", "medium", "minor"), "warning"),
    **dict.fromkeys(("info", "low", "none"), "info"),
}
_LONGEST_FOR_S: Final = 30 * 86_400
_NOUN: Final = "rule file of Prometheus"
_MOST_ITEMS: Final = 200_000
_RULES_IN_TEXT: Final = re.compile(r"^[ \t-]*(alert|groups|receivers)[ \t]*:.*\n", re.MULTILINE)
_TEMPLATE: Final = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LONGEST_NAME: Final = 60
_LONGEST_SUMMARY: Final = 300


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines, such as SQL, as literal blocks."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An alert, or a part of one, that was not translated: its line, name and reason."""

    line: int
    alert: str
    reason: str


@dataclass(frozen=True, slots=True)
class ImportedRules:
    """Rules by name, in the form of a file of alerts; parts left out; and the number of alerts."""

    rules: Mapping[str, Mapping[str, Any]]
    left_out: tuple[LeftOut, ...]
    alerts: int

    def yaml_text(self) -> str:
        """Return the rules to paste into a file of alerts, followed by comments about parts left out."""
        text = yaml.dump({"rules": dict(self.rules)}, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
        notes = [f"# line {each.line}: {each.alert}: {each.reason}" for each in self.left_out]
        return "\n".join([*(text.splitlines() if self.rules else ()), *notes])


def import_rules(path: Path, owner: str, text: str | None = None) -> ImportedRules:
    """Find alerts in any YAML: rule files, PrometheusRules, ConfigMaps, values of Helm, lists of these.

    Raises `AlertFileError` if there are none.
    """
    rules: dict[str, Mapping[str, Any]] = {}
    left_out: list[LeftOut] = []
    alerts = 0
    for file, at, content in _alerts(path, text):
        alerts += 1
        alert = str(content["alert"])
        try:
            name = _name(alert, rules)
            rules[name], lost = _rule(content, owner)
            left_out += [LeftOut(file.line((*at, key)), alert, reason) for key, reason in lost]
        except PromqlError as error:
            left_out.append(LeftOut(file.line((*at, "expr")), alert, f"not translated: {error}"))
    return ImportedRules(rules, tuple(left_out), alerts)


FoundAlert = tuple[OperatorFile, KeyPath, Mapping[str, Any]]
"""An alert of a rule file: the file or a part of it, the path of keys to the alert, and its content."""


def _alerts(path: Path, text: str | None) -> Iterator[FoundAlert]:
    seen: Counter[str] = Counter()
    try:
        documents = OperatorFile.documents(path, text, error=AlertFileError, noun=_NOUN)
    except AlertFileError as error:
        hint = f"{error.hint}, and render what is a template first, as by 'helm template'"
        raise AlertFileError(error.what, where=error.where, hint=hint) from error.__cause__
    for file in documents:
        yield from _alerts_in(file, file.content, (), frozenset(), seen)
    if not seen["alerts"] and seen["receivers"]:
        hint = "name that Alertmanager as a receiver of 'kind: alertmanager': its routes hold for what it gets"
        raise documents[0].error((), "is a configuration of Alertmanager, and has no rules", hint)
    if not seen["alerts"] and not seen["groups"]:
        raise documents[0].error((), "has no list 'groups'", "name a rule file of Prometheus, or a PrometheusRule")


def _alerts_in(
    file: OperatorFile,
    content: Any,  # noqa: ANN401 - any YAML value
    at: KeyPath,
    above: frozenset[int],
    seen: Counter[str],
) -> Iterator[FoundAlert]:
    """Yield alerts in a part of a file, also in embedded rule files; count other items in `seen`."""
    seen["items"] += 1
    if seen["items"] > _MOST_ITEMS:
        file.fail(at, f"has more than {_MOST_ITEMS:,} items", "import a part of it at a time")
    if isinstance(content, str) and _RULES_IN_TEXT.search(content):
        nested = OperatorFile(file.path, "\n" * file.line(at) + content, error=AlertFileError, noun=_NOUN)
        yield from _alerts_in(nested, nested.content, (), frozenset(), seen)
    elif isinstance(content, dict) and "alert" in content and ("expr" in content or at[-2:-1] == ("rules",)):
        seen["alerts"] += 1
        yield file, at, content
    elif isinstance(content, dict | list) and id(content) not in above:
        if isinstance(content, dict):
            seen.update(name for name in ("groups", "receivers") if isinstance(content.get(name), list))
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from _alerts_in(file, value, (*at, key), above | {id(content)}, seen)


def _rule(content: Mapping[str, Any], owner: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return a rule, and its parts that were left out, by key. Raises `PromqlError`."""
    labels, notes = (_texts(content.get(key)) for key in ("labels", "annotations"))
    sql = sql_of(str(content.get("expr", "")))
    for_s = round(seconds_of(str(content["for"]))) if str(content.get("for") or "0") not in {"0", ""} else 0
    if for_s > _LONGEST_FOR_S:
        raise PromqlError("its 'for' is longer than 30 days")
    summary = _plain(notes.get("summary") or notes.get("description") or notes.get("message") or "")
    rule: dict[str, Any] = {"source": "sql", "sql": sql}
    lost: list[tuple[str, str]] = []
    severity = labels.get("severity", "")
    if severity in _SEVERITIES:
        rule["severity"] = _SEVERITIES[severity]
    elif severity:
        lost.append(("labels", f"severity {severity!r} is not known, so it is 'error'"))
    rule |= {"for_s": for_s} if for_s else {}
    runbook = notes.get("runbook_url") or notes.get("runbook") or ""
    if runbook and not _TEMPLATE.search(runbook):
        rule["runbook"] = runbook
    if content.get("keep_firing_for"):
        lost.append(("keep_firing_for", "keep_firing_for is left out: it ends as soon as it does not hold"))
    rule |= {"owner": labels.get("team") or labels.get("owner") or owner, "summary": summary or str(content["alert"])}
    return rule, lost


def _texts(content: object) -> dict[str, str]:
    return {str(key): str(value) for key, value in content.items()} if isinstance(content, dict) else {}


def _plain(text: str) -> str:
    """Return a summary without Prometheus templates."""
    return " ".join(_TEMPLATE.sub("…", text).split())[:_LONGEST_SUMMARY]


def _name(alert: str, taken: Mapping[str, object]) -> str:
    """Return a rule's name: ``GPUHighTemperature`` is ``gpu-high-temperature``; repeated ones get a number."""
    words = re.sub(r"[^a-z0-9_]+", "-", _WORD.sub("-", alert).lower()).strip("-_")[:_LONGEST_NAME] or "alert"
    name, number = words, 1
    while name in taken:
        number += 1
        name = f"{words[: _LONGEST_NAME - 4]}-{number}"
    return name
