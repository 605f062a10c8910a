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
from ranklake.quality.engine import silence, values_of
from ranklake.quality.scan import scan
from ranklake.quality.suite import Suite
from ranklake.quality.suites.conditions import condition_of as compiled
from ranklake.quality.suites.conditions import filter_rows
from ranklake.quality.suites.folder import UserSuite
from ranklake.quality.suites.own import OwnSuites
from ranklake.quality.suites.translate import whole_pattern
from ranklake.quality.tally import Partition, result_of

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
    kind_of_it, kwargs = table[name]
    if name not in {"unique", "compound", "count"} and rng.random() < 0.5:
        kwargs = {**kwargs, **condition_of(kind, one, other, rng)}
    return kind_of_it, kwargs


def leaf_of(kind, one, other, rng):
    """Return a comparison of one of two columns, as Great Expectations writes it."""
    about = {"column": {"name": rng.choice((one, other))}}
    if kind == "bool" or rng.random() < 0.2:
        return {"type": "nullity", **about, "is_null": rng.choice((True, False))}
    known = [value for value in VALUES[kind] if value == value and (kind == "string" or abs(value) <= 2**53)]  # noqa: PLR0124
    known += [] if kind == "string" else [0.5, -1, 2**31]
    how = rng.choice(("==", "!=", "<", "<=", ">", ">=", "IN", "NOT_IN"))
    value = rng.sample(known, rng.randint(1, 3)) if "IN" in how else rng.choice(known)
    return {"type": "comparison", **about, "operator": how, "parameter": value}


def condition_of(kind, one, other, rng):
    """Return a row condition: an object, or a text with its parser."""
    leaves = [leaf_of(kind, one, other, rng) for _ in range(rng.randint(1, 4))]
    texts = [
        f"{leaf['column']['name']} {leaf['operator'].lower().replace('_', ' ')} {leaf['parameter']!r}"
        for leaf in leaves
        if leaf["type"] == "comparison"
    ]
    if texts and rng.random() < 0.3:
        joined = f" {rng.choice(('and', 'or'))} "
        return {"row_condition": joined.join(texts), "condition_parser": "pandas"}
    if len(leaves) == 1:
        return {"row_condition": leaves[0]}
    found = {"type": rng.choice(("and", "or")), "conditions": leaves}
    if len(leaves) == 4:
        found = {"type": "or", "conditions": [{"type": "and", "conditions": leaves[:2]}, *leaves[2:]]}
    return {"row_condition": found}


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
    tallies = scan(site.lake.store, contract, Suite("t", "t", tuple(expectations)), part, judge)
    facts = dict.fromkeys(("check_run", "table", "suite", "gx_version", "files_sha256"), "")
    facts |= dict.fromkeys(("partition_date", "table_version", "ts", "contract_version"))
    return [result_of(one, tally, 0, facts) for one, tally in zip(expectations, tallies, strict=True)]


def theirs(judge, table, asked):
    """Return Great Expectations' own verdict on each: True, False, or None where it fails itself."""
    gx = judge._gx
    configured = gx.expectations.expectation_configuration.ExpectationConfiguration
    frame = pd.DataFrame({name: values_of(table[name], compared=True) for name in table.column_names})
    suite = gx.ExpectationSuite(name="oracle")
    with silence():  # conditions as text are deprecated there
        for number, (kind, kwargs) in enumerate(asked):
            suite.expectations.append(configured(type=kind, kwargs=kwargs, meta={"number": number}).to_domain_obj())
        batch = judge._batches.get_batch(batch_parameters={"dataframe": frame})
        results = batch.validate(suite, result_format="BOOLEAN_ONLY").results
    found = {}
    for result in results:
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
        columns = {name: table[name].to_pylist() for name in one.columns}
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


@pytest.mark.slow
def test_most_row_conditions_are_scanned(site, judge):
    """Conditions are compiled, whatever joins them, and get their verdict."""
    scanned = asked = 0
    for seed in range(200, 204):
        _, _, expectations, pairs = generated(seed)
        about = [one for one, (_, kwargs) in zip(expectations, pairs, strict=True) if "row_condition" in kwargs]
        asked += len(about)
        scanned += sum(one.is_scanned for one in about)
        compare(site, judge, seed)
    assert scanned > asked / 3 > 50


@pytest.mark.slow
def test_conditions_keep_the_rows_that_pandas_keeps(judge):
    """The mask of a condition is that of the query which Great Expectations makes of it: thousands, on 60 rows each."""
    conditions = judge._gx.expectations.row_conditions
    engine = judge._gx.execution_engine.PandasExecutionEngine()
    compared = kept = 0
    for seed in range(3000):
        rng = random.Random(seed)
        kind = rng.choice(("int32", "int64", "float64", "float32", "string"))
        data = {name: [rng.choice((None, *VALUES[kind])) for _ in range(60)] for name in ("a", "b")}
        columns = tuple(Column(i + 1, name, kind, "operational", "doc") for i, name in enumerate(data))
        contract = replace(made(checks=()), columns=columns, partition=("day",))
        table = pa.table(data, arrow_schema(contract))
        raw = condition_of(kind, "a", "b", rng)
        ours = compiled(raw["row_condition"], raw.get("condition_parser"), contract)
        if ours is None:
            continue
        if isinstance(raw["row_condition"], str):
            text = raw["row_condition"]
        else:
            told = conditions.validate_row_condition(conditions.deserialize_row_condition(raw["row_condition"]))
            text = engine.condition_to_filter_clause(told)
            again = conditions.deserialize_row_condition(ours.plain())
            assert engine.condition_to_filter_clause(again) == text
        frame = pd.DataFrame({name: values_of(table[name], compared=True) for name in data})
        expected = frame.query(text).index.to_list()
        mask = ours.mask(table).to_pylist()
        assert [row for row, keeps in enumerate(mask) if keeps] == expected, f"seed {seed}: {text}"
        numbered = encoded(table).append_column("row", pa.array(range(table.num_rows)))
        assert filter_rows(numbered, ours)["row"].to_pylist() == expected
        compared, kept = compared + 1, kept + (0 < len(expected) < table.num_rows)
    assert compared > 1500
    assert kept > 1000


def encoded(table):
    """Return rows as the scan reads them, text dictionary-typed."""
    types = [pa.dictionary(pa.int32(), one.type) if pa.types.is_string(one.type) else one.type for one in table.schema]
    return table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))
