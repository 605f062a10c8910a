"""Translates PromQL of alerts on dcgm-exporter's metrics to equivalent SQL over ``gpu_samples``.

Supported are expressions per device: numbers, metrics with label matchers, arithmetic, comparisons, ``and``, ``or``,
``unless``, and functions over a range. The language: https://prometheus.io/docs/prometheus/latest/querying/basics/.
Anything else is refused with a reason, such as aggregation over series.

>>> print(sql_of('DCGM_FI_DEV_GPU_TEMP{gpu="0"} > 85 and DCGM_FI_PROF_SM_ACTIVE < 0.1'))  # doctest: +ELLIPSIS
SELECT ...
WHERE (v0 > 85 AND v1 < 0.1)
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ranklake.capture.samplers.dcgm import LABELS, MetricMapping, load_table

FRESH_S: Final = 900
"""Greatest age of a device's last sample to count as current: 5 min in Prometheus, but segments arrive later. For the
same reason a range ends with that sample, not now."""
_TOKEN: Final = re.compile(
    r"\s+|#[^\n]*|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w:]))|(?P<duration>(?:\d+(?:ms|[smhdwy]))+)"
    r"|(?P<name>[A-Za-z_:][\w:]*)|(?P<range>\[[^\]]*\])|(?P<text>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')|(?P<sign>=~|!~|==|!=|>=|<=|[-+*/%^(){},=<>@])"
)
_DURATION: Final = re.compile(r"(\d+)(ms|[smhdwy])")
_UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_COMPARISONS: Final = {"==": "=", "!=": "<>", ">": ">", "<": "<", ">=": ">=", "<=": "<="}
_SETS: Final = {"and": "AND", "unless": "AND NOT", "or": "OR"}
_FUNCTIONS: Final = {
    "max_over_time": "max({value}) FILTER (WHERE {where})",
    "min_over_time": "min({value}) FILTER (WHERE {where})",
    "avg_over_time": "avg({value}) FILTER (WHERE {where})",
    "delta": "{last} - {first}",
    "increase": "CASE WHEN {last} >= {first} THEN {last} - {first} ELSE {last} END",
}
"""Functions over a range. As in Prometheus, a falling counter was reset; unlike there, values are not extrapolated to
the range's ends."""
_COUNTERS: Final = ("increase", "rate")
_QUERY: Final = """\
SELECT concat_ws('/', host, device, mig_gpu_instance) AS subject, host, device, run,
  'value ' || concat_ws(', ', {values}) AS message
FROM (
  SELECT host, coalesce(device_uuid, CAST(device_index AS VARCHAR)) AS device, mig_gpu_instance,
    last_value(holder_run ORDER BY ts) AS run{columns}
  FROM (
    SELECT *, max(ts) OVER (PARTITION BY host, device_uuid, device_index, mig_gpu_instance) AS latest
    FROM gpu_samples
    WHERE ts > now() - INTERVAL '{age_s} seconds' AND date >= CAST(now() - INTERVAL '{age_s} seconds' AS DATE)
  )
  WHERE latest > now() - INTERVAL '{fresh_s} seconds'
  GROUP BY host, device_uuid, device_index, mig_gpu_instance
)
WHERE {condition}"""
_MOST_CHARACTERS: Final = 10_000
_MOST_NESTED: Final = 50


class PromqlError(ValueError):
    """An expression that cannot be translated, with the reason."""


def seconds_of(text: str) -> float:
    """Parse a Prometheus duration, such as ``1h30m``, in seconds. Raises `PromqlError`."""
    parts = _DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text or not parts:
        raise PromqlError(f"{text!r} is no duration such as 5m")
    return float(sum(int(number) * _UNITS_S[unit] for number, unit in parts))


def sql_of(expression: str) -> str:
    """Return a query whose rows are the devices for which an expression holds now. Raises `PromqlError`."""
    parser = _Parser(expression)
    condition = parser.whole()
    if not parser.columns:
        raise PromqlError("it names no metric")
    return _QUERY.format(
        columns="".join(f",\n    {sql} AS v{number}" for number, sql in enumerate(parser.columns)),
        values=", ".join(f"v{number}" for number in range(len(parser.columns))),
        fresh_s=FRESH_S,
        age_s=round(FRESH_S + max(FRESH_S, parser.longest_s)),
        condition=condition,
    )


class _Part(NamedTuple):
    """SQL of a part of an expression: a number, or a condition, per device."""

    sql: str
    is_condition: bool


class _Parser:
    """Parses an expression from left to right, and collects the `columns` that it reads."""

    def __init__(self, expression: str) -> None:
        self.columns: list[str] = []
        self.longest_s = 0.0
        self._table: Mapping[str, MetricMapping] = load_table()
        self._tokens, self._at, self._depth = _tokens(expression), 0, 0

    def whole(self) -> str:
        """Return the condition."""
        part = self._set()
        if self._next:
            raise PromqlError(f"{self._next!r} is not translated")
        if not part.is_condition:
            raise PromqlError("it compares nothing, so each series would be an alert")
        return part.sql

    @property
    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *expected: str) -> str:
        token = self._next
        if not token or (expected and token not in expected):
            raise PromqlError(f"{' or '.join(expected) or 'a metric'} is missing before {token or 'its end'!r}")
        self._at += 1
        return token

    def _operator_chain(self, signs: Mapping[str, str], inner: Callable[[], _Part], *, of_conditions: bool) -> _Part:
        """Parse a chain of operators of one precedence, from left to right."""
        part = inner()
        while self._next.lower() in signs:
            sign = signs[self._take().lower()]
            if self._next.lower() in {"on", "ignoring", "bool", "group_left", "group_right"}:
                raise PromqlError(f"{self._next!r} is not translated")
            other = inner()
            if part.is_condition != of_conditions or other.is_condition != of_conditions:
                kind = "a comparison" if of_conditions else "a number"
                raise PromqlError(f"{sign} needs {kind} on both sides")
            right = f"coalesce({other.sql}, FALSE)" if sign == "AND NOT" else other.sql
            part = _Part(f"({part.sql} {sign} {right})", of_conditions)
        return part

    def _set(self) -> _Part:
        both = {name: _SETS[name] for name in ("and", "unless")}
        of_either = lambda: self._operator_chain(both, self._comparison, of_conditions=True)  # noqa: E731
        return self._operator_chain({"or": "OR"}, of_either, of_conditions=True)

    def _comparison(self) -> _Part:
        part = self._sum()
        if self._next not in _COMPARISONS:
            return part
        sign = _COMPARISONS[self._take()]
        if self._next.lower() == "bool":
            raise PromqlError("'bool' is not translated")
        other = self._sum()
        if part.is_condition or other.is_condition:
            raise PromqlError(f"{sign} compares a comparison")
        return _Part(f"{part.sql} {sign} {other.sql}", is_condition=True)

    def _sum(self) -> _Part:
        return self._operator_chain({"+": "+", "-": "-"}, self._product, of_conditions=False)

    def _product(self) -> _Part:
        return self._operator_chain({"*": "*", "/": "/"}, self._atom, of_conditions=False)

    def _atom(self) -> _Part:
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise PromqlError("it is nested too deep")
        word = self._take()
        if word == "(":
            part = self._set()
            self._take(")")
        elif word == "-":
            part = self._atom()
            if part.is_condition:
                raise PromqlError("- needs a number")
            part = _Part(f"(-{part.sql})", is_condition=False)
        elif word[0].isdigit() or word[0] == ".":
            part = _Part(word, is_condition=False)
        elif self._next == "(" or self._next.lower() in {"by", "without"}:
            part = self._function(word)
        else:
            part = self._metric(word)
        self._depth -= 1
        return part

    def _function(self, name: str) -> _Part:
        if name not in _FUNCTIONS and name != "rate":
            raise PromqlError(f"{name}() is not translated")
        self._take("(")
        part = self._metric(self._take(), name)
        self._take(")")
        return part

    def _metric(self, name: str, function: str = "") -> _Part:
        """Return a metric's last value of each device, or a function of its values in a range."""
        mapped = self._table.get(name)
        if mapped is None:
            raise PromqlError(f"no column of ranklake has {name}")
        if mapped.unit in {"bits", "truth"}:
            raise PromqlError(f"{name} is no number in ranklake, but the column {mapped.column}")
        if function in _COUNTERS and mapped.kind != "counter":
            raise PromqlError(f"{function}() of {name}, which is no counter")
        value = f"CAST({mapped.column} AS DOUBLE)" + (f" / {mapped.factor!r}" if mapped.factor != 1 else "")
        where = [f"{mapped.column} IS NOT NULL", *self._matchers()]
        if bool(function) != self._next.startswith("["):
            raise PromqlError(f"a range such as [5m] is {'missing' if function else 'too much'} after {name}")
        range_s = float(FRESH_S)
        if function:
            range_s = seconds_of(self._take()[1:-1])
            if range_s < 1:
                raise PromqlError("a range is shorter than a second")
            self.longest_s = max(self.longest_s, range_s)
        where.append(f"ts > latest - INTERVAL '{range_s:.0f} seconds'")
        if self._next.lower() in {"offset", "@"}:
            raise PromqlError(f"{self._next!r} is not translated")
        filters = " AND ".join(where)
        first, last = (f"{end}_value({value} ORDER BY ts) FILTER (WHERE {filters})" for end in ("first", "last"))
        form = _FUNCTIONS["increase" if function == "rate" else function] if function else "{last}"
        sql = form.format(value=value, where=filters, first=first, last=last)
        sql = f"({sql}) / {range_s!r}" if function == "rate" else sql
        if sql not in self.columns:
            self.columns.append(sql)
        return _Part(f"v{self.columns.index(sql)}", is_condition=False)

    def _matchers(self) -> list[str]:
        result: list[str] = []
        if self._next != "{":
            return result
        self._take()
        while self._next != "}":
            label, sign, text = self._take(), self._take("=", "!=", "=~", "!~"), self._take()
            if label not in LABELS:
                raise PromqlError(f"no column of gpu_samples has the label {label}")
            column = f"coalesce(CAST({LABELS[label]} AS VARCHAR), '')"
            given = re.sub(r"\\(.)", r"\1", text[1:-1])
            if sign in {"=~", "!~"}:
                given = f"^(?:{given})$"
            literal = "'" + given.replace("'", "''") + "'"
            result.append(f"{column} {({'=': '=', '!=': '<>', '=~': '~', '!~': '!~'})[sign]} {literal}")
            if self._next != "}":
                self._take(",")
        self._take("}")
        return result


def _tokens(expression: str) -> list[str]:
    if len(expression) > _MOST_CHARACTERS:
        raise PromqlError(f"it has more than {_MOST_CHARACTERS:,} characters")
    result, at = [], 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            raise PromqlError(f"{expression[at]!r} is not translated")
        at = match.end()
        if match.lastgroup:
            result.append(match[0])
    return result
