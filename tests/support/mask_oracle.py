"""Roles in plain Python: rows are filtered, then masked, then queried. What `ranklake sql --role` must equal."""

import hashlib
import hmac
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

MAC = b"ranklake segment 1: mask"


def pseudonym(keys, text):
    """Return a text's pseudonym under keys, the oldest first, of which each is (id, secret)."""
    for key_id, secret in keys:
        own = hmac.new(secret, MAC, hashlib.sha256).digest()
        digits = hmac.new(own, b"text\0" + text.encode(), hashlib.sha256).hexdigest()[:24]
        text = (
            f"p-{key_id}-{digits}{hmac.new(own, b'proof' + bytes(1) + digits.encode(), hashlib.sha256).hexdigest()[:8]}"
        )
    return text


def stars(text):
    return "".join(one if one in "-_.@/: " else "*" for one in text)


def keep(text, how):
    if how == "domain":
        at = text.rfind("@")
        return stars(text) if at < 1 else stars(text[:at]) + text[at:]
    first, _, last = how.partition("+")
    first, last = int(first), int(last or 0)
    if len(text) < 2 * (first + last):
        return stars(text)
    return text[:first] + stars(text[first : len(text) - last]) + text[len(text) - last :]


def truncate(value, unit):
    midnight = {"hour": 0, "minute": 0, "second": 0, "microsecond": 0}
    if unit in {"hour", "minute"}:
        return value.replace(minute=0 if unit == "hour" else value.minute, second=0, microsecond=0)
    if isinstance(value, datetime):
        value = value.replace(**midnight)
    if unit == "week":
        return value - timedelta(days=value.weekday())
    if unit == "month":
        return value.replace(day=1)
    if unit == "quarter":
        return value.replace(day=1, month=(value.month - 1) // 3 * 3 + 1)
    return value.replace(day=1, month=1) if unit == "year" else value


def mask(value, said, keys):
    """Return a value as a mask shows it; ``redact`` is not among those that this knows."""
    kind, _, how = said.partition(":")
    if value is None or kind == "nullify":
        return None
    if isinstance(value, list):
        return [mask(one, said, keys) for one in value]
    if kind == "hash":
        return pseudonym(keys, value)
    if kind == "keep":
        return keep(value, how)
    if kind == "truncate":
        return truncate(value, how)
    width = int(how) if isinstance(value, int) else float(how)
    return math.floor(value / width) * width if isinstance(value, float) else value // width * width


@dataclass
class Query:
    """A query over views: as SQL, and as a function from the views' rows (by table) to rows."""

    sql: str
    answer: object = field(repr=False)


def literal(value):
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.isoformat()}'"
    return repr(value)


class Condition:
    """A random condition on a row, in SQL and in Python's three values of truth."""

    def __init__(self, chance: random.Random, columns, values, depth=2):
        self._parts = []
        kind = chance.choice(["and", "or", "not", "leaf", "leaf"]) if depth else "leaf"
        if kind == "leaf":
            name = chance.choice(columns)
            known = [one for one in values[name] if one is not None and not isinstance(one, list)]
            kind = chance.choice(["=", "<>", "<", "like", "null", "in"]) if known else "null"
            some = [chance.choice(known) for _ in range(3)] if known else []
            if kind == "like" and not isinstance(some[0], str):
                kind = ">="
            self.sql, self._holds = _leaf(name, kind, some)
        elif kind == "not":
            one = Condition(chance, columns, values, depth - 1)
            self.sql, self._holds = f"NOT ({one.sql})", lambda row: None if (v := one(row)) is None else not v
        else:
            one, other = (Condition(chance, columns, values, depth - 1) for _ in range(2))
            decided = kind == "or"
            self.sql = f"({one.sql}) {kind.upper()} ({other.sql})"
            self._holds = lambda row: (
                decided if decided in (a := (one(row), other(row))) else (None if None in a else not decided)
            )

    def __call__(self, row):
        """Say whether it holds for a row: true, false, or None."""
        return self._holds(row)


def _leaf(name, kind, some):
    column = f'"{name}"'
    if kind == "null":
        return f"{column} IS NULL", lambda row: row[name] is None
    if kind == "in":
        listed = ", ".join(map(literal, some))
        return f"{column} IN ({listed})", lambda row: None if row[name] is None else row[name] in some
    first = some[0]
    if kind == "like":
        head = first[:3].replace("\\", "").replace("%", "").replace("_", "")
        pattern = literal(head + "%")
        return f"{column} LIKE {pattern}", lambda row: None if row[name] is None else row[name].startswith(head)
    told = {
        "=": lambda value: value == first,
        "<>": lambda value: value != first,
        "<": lambda value: value < first,
        ">=": lambda value: value >= first,
    }[kind]
    return f"{column} {kind} {literal(first)}", lambda row: None if row[name] is None else told(row[name])


def random_query(chance, views, planted):
    """Return a random query over views (rows by table), with literals from their rows and from what is hidden."""
    table = chance.choice(sorted(views))
    columns = sorted(views[table][0])
    plain = [one for one in columns if not any(isinstance(row[one], list) for row in views[table])]
    values = {name: [row[name] for row in views[table]] + planted.get((table, name), []) for name in plain}
    condition = Condition(chance, plain, values)

    def kept(given):
        return [row for row in given[table] if condition(row) is True]

    shape = chance.choice(["rows", "groups", "distinct", "top", "two", "two"])
    name, other = chance.choice(plain), chance.choice(plain)
    if shape == "rows":
        chosen = chance.sample(columns, min(3, len(columns)))
        sql = f"SELECT {', '.join(quoted(chosen))} FROM {table} WHERE {condition.sql}"
        return Query(sql, lambda given: [tuple(row[one] for one in chosen) for row in kept(given)])
    if shape == "groups":
        measured = f'count(*), min("{other}"), max("{other}")'
        sql = f'SELECT "{name}", {measured} FROM {table} WHERE {condition.sql} GROUP BY "{name}"'
        return Query(sql, lambda given: _groups(kept(given), name, other))
    if shape == "distinct":
        sql = f'SELECT DISTINCT "{name}" FROM {table} WHERE {condition.sql}'
        return Query(sql, lambda given: list({(row[name],) for row in kept(given)}))
    if shape == "top":
        sql = f'SELECT "{name}" FROM {table} WHERE ({condition.sql}) AND "{name}" IS NOT NULL ORDER BY "{name}" LIMIT 5'
        return Query(sql, lambda given: [(one,) for one in sorted(_there(kept(given), name))[:5]])
    return _of_two(chance, views, table, name, condition, kept)


def _of_two(chance, views, table, name, condition, kept):
    """Return a query over two tables, by a column that both have."""
    plain = views[table][0]
    second = chance.choice(sorted(views))
    key = chance.choice([one for one in ("user", "run", "cluster") if one in plain and one in views[second][0]] or [""])
    if not key:
        return Query(f"SELECT count(*) FROM {table} WHERE {condition.sql}", lambda given: [(len(kept(given)),)])
    if chance.random() < 0.5:
        sql = f'SELECT count(*) FROM {table} WHERE ({condition.sql}) AND "{key}" IN (SELECT "{key}" FROM {second})'
        return Query(
            sql,
            lambda given: [
                (len([r for r in kept(given) if r[key] is not None and r[key] in _there(given[second], key)]),)
            ],
        )
    inner = f"(SELECT * FROM {table} WHERE {condition.sql})"
    sql = f'SELECT a."{name}", b."{key}" FROM {inner} a JOIN {second} b ON a."{key}" = b."{key}"'
    return Query(
        sql,
        lambda given: [
            (row[name], mate[key])
            for row in kept(given)
            for mate in given[second]
            if row[key] is not None and row[key] == mate[key]
        ],
    )


def quoted(names):
    return [f'"{one}"' for one in names]


def _there(rows, name):
    return [row[name] for row in rows if row[name] is not None]


def _groups(rows, name, other):
    groups = {}
    for row in rows:
        groups.setdefault(row[name], []).append(row)
    return [
        (key, len(some), min(_there(some, other), default=None), max(_there(some, other), default=None))
        for key, some in groups.items()
    ]


def bag(rows):
    """Return rows as a multiset; times by what they say, whatever class their zone is of."""
    return Counter(repr([one.isoformat() if isinstance(one, datetime) else one for one in row]) for row in rows)
