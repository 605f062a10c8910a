"""Rule files of Prometheus as rules of alerts, as far as they translate; each other alert with its line and reason."""

import re
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
_TEMPLATE: Final = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LONGEST_NAME: Final = 60
_LONGEST_SUMMARY: Final = 300


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An alert that did not translate, or a part of one: its line, its name, and why."""

    line: int
    alert: str
    reason: str


@dataclass(frozen=True, slots=True)
class ImportedRules:
    """Rules by name, as they stand in a file of alerts; what was left out; how many alerts there were."""

    rules: Mapping[str, Mapping[str, Any]]
    left_out: tuple[LeftOut, ...]
    alerts: int

    def yaml_text(self) -> str:
        """Return the rules to paste into a file of alerts, then what was left out as comments."""
        text = yaml.safe_dump({"rules": dict(self.rules)}, sort_keys=False, width=110, allow_unicode=True)
        notes = [f"# line {each.line}: {each.alert}: {each.reason}" for each in self.left_out]
        return "\n".join([*(text.splitlines() if self.rules else ()), *notes])


def import_rules(path: Path, owner: str, text: str | None = None) -> ImportedRules:
    """Read a rule file, or a PrometheusRule of its operator. Raises `AlertFileError` where it is neither."""
    file = OperatorFile(path, text, error=AlertFileError, noun="rule file of Prometheus")
    rules: dict[str, Mapping[str, Any]] = {}
    left_out: list[LeftOut] = []
    alerts = 0
    for at, content in _alerts(file):
        alerts += 1
        alert = str(content["alert"])
        try:
            name = _name(alert, rules)
            rules[name], lost = _rule(content, owner)
            left_out += [LeftOut(file.line((*at, key)), alert, why) for key, why in lost]
        except PromqlError as error:
            left_out.append(LeftOut(file.line((*at, "expr")), alert, f"not translated: {error}"))
    return ImportedRules(rules, tuple(left_out), alerts)


def _alerts(file: OperatorFile) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    content, at = file.content, ()
    if isinstance(content, dict) and isinstance(content.get("spec"), dict):
        content, at = content["spec"], ("spec",)  # type: ignore[assignment]
    groups = content.get("groups") if isinstance(content, dict) else None
    if not isinstance(groups, list):
        raise file.error((), "has no list 'groups'", "name a rule file of Prometheus, or a PrometheusRule")
    for number, group in enumerate(groups):
        listed = group.get("rules") if isinstance(group, dict) else None
        for place, rule in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(rule, dict) and "alert" in rule:
                yield (*at, "groups", number, "rules", place), rule


def _rule(content: Mapping[str, Any], owner: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return a rule, and what of it was left out, by key. Raises `PromqlError`."""
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
    """Return a summary without templates of Prometheus."""
    return " ".join(_TEMPLATE.sub("…", text).split())[:_LONGEST_SUMMARY]


def _name(alert: str, taken: Mapping[str, object]) -> str:
    """Return a rule's name: ``GPUHighTemperature`` is ``gpu-high-temperature``; a second one gets a number."""
    words = re.sub(r"[^a-z0-9_]+", "-", _WORD.sub("-", alert).lower()).strip("-_")[:_LONGEST_NAME] or "alert"
    name, number = words, 1
    while name in taken:
        number += 1
        name = f"{words[: _LONGEST_NAME - 4]}-{number}"
    return name
