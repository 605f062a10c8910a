"""PromQL as far as the shipped rules use it: parsed by promql-parser, worked out on samples of one moment.

A range function is worked out on what a series came to since it began: what it increased by, or where it will be.
"""

import operator
import re

ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
COMPARISONS = {"==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge,
               "<=": operator.le}  # fmt: skip
RANGES = {"increase", "rate", "predict_linear"}
REDUCED = {"sum": sum, "max": max, "min": min}


def parsed(text):
    """Return the tree of an expression. Raises ValueError."""
    import promql_parser  # of the extra dev: who looks at other tests may lack it

    return promql_parser.parse(text)


def kind_of(tree):
    """Return the name of a tree's class."""
    return type(tree).__name__


def parts(tree):
    """Yield a tree and all that is in it."""
    yield tree
    for name in ("lhs", "rhs", "expr", "vector_selector"):
        if (below := getattr(tree, name, None)) is not None:
            yield from parts(below)
    for below in getattr(tree, "args", None) or ():
        yield from parts(below)


def metrics_of(text):
    """Return the metrics that an expression reads."""
    return {part.name for part in parts(parsed(text)) if kind_of(part) == "VectorSelector"}


def labels_of(text):
    """Return the labels that an expression matches or groups by, with the metrics below each."""
    for part in parts(parsed(text)):
        if kind_of(part) == "VectorSelector":
            yield from ((matcher.name, {part.name}) for matcher in part.matchers.matchers)
        if kind_of(part) == "AggregateExpr" and part.modifier is not None:
            below = {each.name for each in parts(part.expr) if kind_of(each) == "VectorSelector"}
            yield from ((label, below) for label in part.modifier.labels)


def answered(text, series, now=0.0):
    """Return what an expression gives on series, {(name, frozenset of labels): value}: a number, or likewise."""
    return _worked(parsed(text), series, now)


def _worked(tree, series, now):
    kind = kind_of(tree)
    if kind in INNER:
        return _worked(getattr(tree, INNER[kind]), series, now)
    if kind == "BinaryExpr":
        return _combined(str(tree.op), _worked(tree.lhs, series, now), _worked(tree.rhs, series, now))
    return WORK[kind](tree, series, now)


def _number(tree, _series, _now):
    return tree.val


def _selected(tree, series, _now):
    return {labels: value for (name, labels), value in series.items() if name == tree.name and _fits(tree, labels)}


def _fits(tree, labels):
    known = dict(labels)
    tests = {"=": lambda want, have: want == have, "!=": lambda want, have: want != have,
             "=~": lambda want, have: bool(re.fullmatch(want, have)),
             "!~": lambda want, have: not re.fullmatch(want, have)}  # fmt: skip
    ops = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}
    return all(
        tests[ops[str(each.op).rpartition(".")[2]]](each.value, known.get(each.name, ""))
        for each in tree.matchers.matchers
    )


def _called(tree, series, now):
    name = tree.func.name
    if name == "time":
        return now
    first = _worked(tree.args[0], series, now)
    if name == "absent":
        return {} if first else {frozenset(): 1.0}
    assert name in RANGES, name
    return first


def _reduced(tree, series, now):
    groups = {}
    by = set(tree.modifier.labels) if tree.modifier is not None else set()
    for labels, value in _worked(tree.expr, series, now).items():
        groups.setdefault(frozenset(each for each in labels if each[0] in by), []).append(value)
    return {labels: REDUCED[str(tree.op)](values) for labels, values in groups.items()}


def _combined(sign, left, right):
    if sign == "or":
        return {**right, **left}
    if not isinstance(left, dict) and not isinstance(right, dict):
        return ARITHMETIC[sign](left, right)
    if isinstance(left, dict) and isinstance(right, dict):
        pairs = {labels: (value, right[labels]) for labels, value in left.items() if labels in right}
    elif isinstance(left, dict):
        pairs = {labels: (value, right) for labels, value in left.items()}
    else:
        pairs = {labels: (left, value) for labels, value in right.items()}
    if sign in COMPARISONS:
        return {labels: pair[0] for labels, pair in pairs.items() if COMPARISONS[sign](*pair)}
    return {labels: ARITHMETIC[sign](*pair) for labels, pair in pairs.items()}


INNER = {"ParenExpr": "expr", "MatrixSelector": "vector_selector"}
WORK = {"NumberLiteral": _number, "VectorSelector": _selected, "Call": _called, "AggregateExpr": _reduced}
