"""Users' expectations in the shared scan against Great Expectations itself, on generated columns of one stored file."""

import random
import re
from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from checked import DAY, made

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.model import Column
from ranklake.quality.frame import values_of
from ranklake.quality.partition import Partition
from ranklake.quality.scan import scan
from ranklake.quality.suite import Suite
from ranklake.quality.suites.folder import UserSuite
from ranklake.quality.suites.own import OwnSuites
from ranklake.quality.suites.patterns import whole_pattern
from ranklake.quality.verdict import result_of

PAIRS = 60  # pairs of columns of one type in a table, and five expectations on each
WORDS = (
    "",
    "a",
    "ab",
    "abc",
    "a1",
    "1",
    "7",
    "x-y",
    "é",
    "日本",
    "a\n",
    "\nab",
    "A",
    "a.b",
    "^a$",
    "\u0663",
    "a b",
    " ",
    "\t",
)
NUMBERS = (0, 1, -1, 2, 3, 5, 2**31 - 1)
LARGE = (2**53, 2**53 - 1, -(2**53))
REALS = (0.0, -0.0, 0.1, 0.25, 0.3, 1.0, -1.5, 2.5, 1e300, float("inf"), float("-inf"), float("nan"))
VALUES = {
    "int32": NUMBERS,
    "int64": (*NUMBERS, *LARGE),
    "float64": REALS,
    "float32": tuple(one for one in REALS if one != 1e300),
    "string": WORDS,
    "bool": (True, False),
}
PATTERNS = (
    *(
        "a",
        "^a",
        "b$",
        "^a$",
        "^[a-z]+$",
        "[0-9]",
        r"\d",
        r"^\d+$",
        r"^\w+$",
        "a|b",
        "^a|b$",
        "a.b",
        r"a\.b",
        "^.*$",
        ".",
    ),
    *("[^a]", r"[\d]", "x-y", "a{1,2}", "^(a|ab)c?$", r"\s", "(?i)a", "é", "a b", "^$", "a*", "a+?b", "[a-", "[]]"),
)


def column_of(kind, rows, rng):
    """Return values of a column: often few and sound ones, sometimes NULL, or nothing else."""
    some = rng.sample(VALUES[kind], rng.randint(1, len(VALUES[kind])))
    empty = rng.choice((0.0, 0.0, 0.3, 1.0))
    return [None if rng.random() < empty else rng.choice(some) for _ in range(rows)]


def bounds_of(kind, rng):
    """Return the parameters of a range."""
    known = [one for one in VALUES.get(kind, (0, 1, 2, 3)) if one == one and abs(one) <= 2**53]  # noqa: PLR0124 - NaN
    low, high = sorted(rng.choices(known, k=2))
    found = {"min_value": rng.choice((low, low, None)), "max_value": rng.choice((high, high, None))}
    found |= {"strict_min": rng.choice((True, False, None)), "strict_max": rng.choice((True, False, None))}
    return {name: value for name, value in found.items() if value is not None}


def asked_of(kind, one, other, rng):
    """Return an expectation on a column, or on it and another of its type."""
    mostly = rng.choice(({}, {}, {"mostly": rng.choice((0, 0.25, 0.5, 0.9, 1, 1.0))}))
    name = rng.choice(
        ("not_null", "between", "in_set", "regex", "lengths", "length", "pair", "unique", "compound", "count")
    )
    values = rng.sample(VALUES[kind], rng.randint(0, min(4, len(VALUES[kind]))))
    sound = [value for value in values if value == value and (kind == "string" or abs(value) < 2**60)]  # noqa: PLR0124
    table = {
        "not_null": ("expect_column_values_to_not_be_null", {"column": one, **mostly}),
        "between": ("expect_column_values_to_be_between", {"column": one, **bounds_of(kind, rng), **mostly})
        if kind not in {"string", "bool"}
        else ("expect_column_values_to_be_in_set", {"column": one, "value_set": sound, **mostly}),
        "in_set": ("expect_column_values_to_be_in_set", {"column": one, "value_set": sound, **mostly}),
        "regex": ("expect_column_values_to_match_regex", {"column": one, "regex": rng.choice(PATTERNS), **mostly}),
        "lengths": ("expect_column_value_lengths_to_be_between", {"column": one, **bounds_of("", rng), **mostly}),
        "length": ("expect_column_value_lengths_to_equal", {"column": one, "value": rng.randint(0, 3), **mostly}),
        "pair": (
            "expect_column_pair_values_a_to_be_greater_than_b",
            {
                "column_A": one,
                "column_B": other,
                "or_equal": True,
                "ignore_row_if": "either_value_is_missing",
                **mostly,
            },
        ),
        "unique": ("expect_column_values_to_be_unique", {"column": one}),
        "compound": (
            "expect_compound_columns_to_be_unique",
            {"column_list": [one, other], "ignore_row_if": "any_value_is_missing"},
        ),
        "count": ("expect_table_row_count_to_be_between", bounds_of("", rng)),
    }
    return table[name]


def generated(seed):
    """Return a contract of many columns, rows of it, and a suite of expectations."""
    rng = random.Random(seed)
    rows = rng.choice((0, 1, 2, 3, 8, 40))
    names, kinds, data = [], [], {}
    for number in range(PAIRS):
        kind = rng.choice(tuple(VALUES))
        for side in "ab":
            names.append(f"{side}{number}")
            kinds.append(kind)
            data[names[-1]] = column_of(kind, rows, rng)
    columns = tuple(
        Column(i + 1, name, kind, "operational", "doc") for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    )
    contract = replace(made(checks=()), columns=columns, partition=("day",))
    table = pa.table(data, arrow_schema(contract))
    some = [
        asked_of(kinds[2 * number], *rng.sample((f"a{number}", f"b{number}"), 2), rng)
        for number in range(PAIRS)
        for _ in range(5)
    ]
    suite = UserSuite("t.own", "t", tuple({"type": kind, "kwargs": kwargs} for kind, kwargs in some))
    return contract, table, OwnSuites((suite,)).of(contract), some


def ours(site, judge, contract, table, expectations):
    """Return the verdict of the shared scan on each expectation."""
    path = f"date={DAY}/rows.parquet"
    where = site.folder / "lake" / "tables" / "t" / path
    where.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, where)
    row = {"path": [path], "size_bytes": [where.stat().st_size], "num_records": [table.num_rows], "date": [DAY]}
    part = Partition(DAY, 0, pa.table(row))
    tallies = scan(site.lake, contract, Suite("t", "t", tuple(expectations)), part, judge)
    facts = dict.fromkeys(("check_run", "table", "suite", "gx_version", "files_sha256"), "")
    facts |= dict.fromkeys(("partition_date", "table_version", "ts", "contract_version"))
    return [result_of(one, tally, 0, facts) for one, tally in zip(expectations, tallies, strict=True)]


def theirs(judge, table, asked):
    """Return Great Expectations' own verdict on each: True, False, or None where it fails itself."""
    gx = judge._gx
    configured = gx.expectations.expectation_configuration.ExpectationConfiguration
    frame = pd.DataFrame({name: values_of(table[name], compared=True) for name in table.column_names})
    suite = gx.ExpectationSuite(name="oracle")
    for number, (kind, kwargs) in enumerate(asked):
        suite.expectations.append(configured(type=kind, kwargs=kwargs, meta={"number": number}).to_domain_obj())
    batch = judge._batches.get_batch(batch_parameters={"dataframe": frame})
    found = {}
    for result in batch.validate(suite, result_format="BOOLEAN_ONLY").results:
        raised = "raised_exception': True" in str(result.exception_info)
        found[result.expectation_config.meta["number"]] = None if raised else bool(result.success)
    return [found[number] for number in range(len(asked))]


def compare(site, judge, seed):
    """Hold both ways against each other; return how many expectations were compared."""
    contract, table, expectations, asked = generated(seed)
    pairs = [(one, config) for one, config in zip(expectations, asked, strict=True) if one.is_scanned]
    results = ours(site, judge, contract, table, [one for one, _ in pairs])
    verdicts = theirs(judge, table, [config for _, config in pairs])
    for (one, config), result, verdict in zip(pairs, results, verdicts, strict=True):
        said = {"passed": True, "skipped": True, "failed": False, "errored": None}[result.status]
        columns = {name: table[name].to_pylist() for name in one.check.columns}
        assert said == verdict, f"seed {seed}: {config} on {columns}: {result.status} ({result.message}), not {verdict}"
    return len(pairs)


def test_patterns_find_what_python_finds():
    """A translated expression finds in each text what Python's search finds, read by RE2 and by Python."""
    rng = random.Random(5)
    bits = ("a", "b", "ab", ".", "[a-z]", "[^a]", "(a|b)", "a*", "b+", "a?", r"\.", "x-y", "é", "{1,2}", "|", "^", "$")
    bits += (r"\d", "(?:a)", "[0-9]", "\n", "1", "-", " ")
    texts = (*WORDS, "b\n", "aab", "a\nb", "b\n\n", "1\n")
    compared = 0
    for _ in range(4000):
        middle = "".join(rng.choices(bits, k=rng.randint(1, 5)))
        regex = rng.choice(("", "^")) + middle + rng.choice(("", "$"))
        pattern = whole_pattern(regex)
        if pattern is None or not valid(pattern):
            continue
        found = [bool(re.search(regex, text)) for text in texts]
        assert found == [bool(re.search(rf"\A(?:{pattern})\Z", text)) for text in texts], regex
        assert found == pc.match_substring_regex(pa.array(texts), rf"\A(?:{pattern})\z").to_pylist(), regex
        compared += 1
    assert compared > 1000


def test_classes_clear_no_more_than_python_finds():
    """With classes RE2 finds a subset of what Python finds, which reads the translation as it reads the original."""
    rng = random.Random(6)
    bits = (
        r"\d",
        r"\w",
        r"\s",
        r"[\d.]",
        r"[^\d]",
        r"[\w-]",
        "a",
        "-",
        r"\.",
        "+",
        "*",
        "?",
        "|",
        "[^a]",
        r"\D",
        r"\b",
    )
    texts = (*WORDS, "٣", "a٣", "é1", "a b", "a\u00a0b", "12-3", "", "a.b", "\v", "3\n")
    compared = 0
    for _ in range(4000):
        middle = "".join(rng.choices(bits, k=rng.randint(1, 4)))
        regex = rng.choice(("", "^")) + middle + rng.choice(("", "$"))
        pattern = whole_pattern(regex, classes=True)
        if pattern is None or not valid(pattern):
            continue
        assert not [bit for bit in (r"[^\d", r"\D", r"\b") if bit in regex]
        found = [bool(re.search(regex, text)) for text in texts]
        assert found == [bool(re.search(rf"\A(?:{pattern})\Z", text)) for text in texts], regex
        cleared = pc.match_substring_regex(pa.array(texts), rf"\A(?:{pattern})\z").to_pylist()
        assert not any(here and not there for here, there in zip(cleared, found, strict=True)), regex
        compared += r"\d" in regex or r"\w" in regex or r"\s" in regex
    assert compared > 300
    assert whole_pattern(r"\d+") is None


def valid(pattern):
    """Say whether Python and RE2 take an expression."""
    try:
        re.compile(pattern)
        pc.match_substring_regex(pa.array([""]), pattern)
    except (re.error, pa.ArrowInvalid):
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_scan_gives_their_verdict(site, judge, seed):
    """Whatever is translated gets the verdict of Great Expectations; most is translated."""
    assert compare(site, judge, seed) > 100


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 150, 10))
def test_the_scan_gives_their_verdict_on_thousands_of_columns(site, judge, first):
    """As above, for 6,000 columns and 15,000 expectations in all."""
    for seed in range(first, first + 10):
        compare(site, judge, seed)
