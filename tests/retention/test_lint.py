"""Thirty-odd planted mistakes in policies: each is found, with its line and what to do about it."""

from datetime import date

import jsonschema
import pytest
from retaining import CONTRACTS

from ranklake.retention.policies.file import json_schema
from ranklake.retention.policies.policies import PolicyError, lint_policies, load_policies
from ranklake.retention.policies.read import ERRORS, PACKAGED, WARNINGS, read_policies

TODAY = date(2026, 11, 23)
HEAD = "version: 1\nowner: me\nbasis: law\nreview: 2027-01-01\nrules:\n"  # five lines: rules begin in the sixth
DEBUG = "debug: {where: {table: logs, severity: debug}, delete_after_days: 7, reason: why}"
LATER = "  b: {where: {table: logs}, maximum_days: 60, reason: why}\n"


def folder(tmp_path, text, **others):
    """Write the packaged rules and a file of one's own; return their folder."""
    (tmp_path / "a_defaults.yaml").write_text((PACKAGED / "defaults.yaml").read_text())
    (tmp_path / "mine.yaml").write_text(text)
    for name, other in others.items():
        (tmp_path / f"{name}.yaml").write_text(other)
    return tmp_path


def own(rule):
    """Return a file with one rule (in line 6)."""
    return f"{HEAD}  {rule}\n"


def demanding(demand):
    """Return a file with a demand on places (in line 7)."""
    return f"{own(DEBUG)}places: {{a: {demand}}}\n"


MISTAKES = [  # code, line, file, and what is said
    # what cannot be read, or breaks the schema
    ("RP001", 7, own("a: {where: {"), "YAML"),
    ("RP001", 7, own(DEBUG) + f"  {DEBUG}\n", "twice"),
    ("RP002", 2, own(DEBUG).replace("owner:", "ownr:"), "did you mean 'owner'?"),
    ("RP002", 1, own(DEBUG).replace("version: 1", "version: 3"), "cannot be 3"),
    ("RP002", 6, own(DEBUG.replace("delete_after_days", "delete_afer_days")), "did you mean 'delete_after_days'?"),
    ("RP002", 6, own(DEBUG.replace("severity", "severty")), "did you mean 'severity'?"),
    ("RP002", 6, own(DEBUG.replace("7", "0")), "must be at least 1"),
    ("RP002", 6, own(DEBUG.replace("7", "a week")), "must be a whole number"),
    ("RP002", 6, own(DEBUG.replace(", reason: why", "")), "lacks the key 'reason'"),
    ("RP002", 6, own("a: {where: {table: []}, delete_after_days: 7, reason: why}"), "must not be empty"),
    ("RP002", 6, own("a: {where: {table: logs}, archive: {after_days: 3}, reason: why}"), "lacks the key 'to'"),
    ("RP002", 4, own(DEBUG).replace("2027-01-01", "soon"), "must be a day such as 2027-06-30, not 'soon'"),
    # who answers, and when it is looked at
    ("RP003", 5, own(DEBUG).replace("owner: me\n", ""), "add owner"),
    ("RP003", 5, own(DEBUG).replace("basis: law\n", ""), "add basis"),
    ("RP002", 6, own(DEBUG.replace("reason", "review: 2027-02-30, reason")), "not '2027-02-30'"),
    ("RP002", 6, own(DEBUG.replace("table: logs", "table: null")), "where.table must be text or a list, not empty"),
    ("RP018", 6, own(DEBUG.replace("reason", "review: 2026-11-22, reason")), "was due on 2026-11-22 (me)"),
    ("RP019", 5, own(DEBUG).replace("review: 2027-01-01\n", ""), "add review"),
    # names that nothing has
    ("RP005", 6, own(DEBUG.replace("table: logs", "table: lgos")), "did you mean 'logs'?"),
    ("RP005", 6, own("a: {where: {class: rwa}, delete_after_days: 7, reason: why}"), "did you mean 'raw'?"),
    ("RP005", 6, own(DEBUG.replace("debug}", "debgu}")), "did you mean 'debug'?"),
    ("RP005", 6, own("a: {where: {kind: scalar}, delete_after_days: 7, reason: why}"), "did you mean 'scalars'?"),
    ("RP005", 6, own("a: {where: {table: logs, column: mesage}, mask_after_days: 7, reason: why}"), "'message'?"),
    # what a rule says
    ("RP006", 6, own("a: {where: {table: logs}, reason: why}"), "add delete_after_days"),
    ("RP007", 6, own("a: {where: {class: audit}, delete_after_days: 9, reason: why}"), "write delete_after_days: null"),
    ("RP009", 6, own("a: {where: {}, delete_after_days: 7, reason: why}"), "takes everything; name what it is about"),
    ("RP009", 6, own("a: {where: {class: '*'}, maximum_days: 7, reason: why}"), "everything: true and tier: 2"),
    ("RP009", 6, own("a: {where: {table: '*'}, delete_after_days: 7, everything: true, reason: why}"), "tier: 2"),
    ("RP009", 6, own("a: {where: {}, delete_after_days: 7, tier: 2, reason: why}"), "everything: true"),
    ("RP013", 6, own("a: {where: {table: logs, column: message}, delete_after_days: 7, reason: why}"), "not deleted"),
    ("RP013", 6, own("a: {where: {table: logs}, mask_after_days: 7, reason: why}"), "names no columns"),
    ("RP016", 6, own(DEBUG.replace("table: logs", "table: steps")), "is about nothing"),
    ("RP016", 6, own("a: {where: {class: raw, table: runs}, delete_after_days: 7, reason: why}"), "is about nothing"),
    ("RP016", 6, own("a: {where: {table: cost, team: x}, delete_after_days: 7, reason: why}"), "is about nothing"),
    ("RP026", 6, own("a: {where: {table: logs}, archive: {after_days: 3, to: x}, reason: why}"), "neither a URI nor"),
    (
        "RP026",
        6,
        own("a: {where: {table: logs}, archive: {after_days: 3, to: 's3://k:s@b/x'}, reason: why}"),
        "credential",
    ),
    (
        "RP026",
        6,
        own("a: {where: {table: logs}, archive: {after_days: 3, to: /x, storage_class: GLACIER}, reason: why}"),
        "only S3",
    ),
    ("RP026", 6, own("a: {where: {class: audit}, archive: {after_days: 3, to: /x}, reason: why}"), "the books"),
    (
        "RP027",
        6,
        own(
            "a: {where: {table: logs}, archive: {after_days: 3, to: /x}, reason: why}\n"
            "  b: {where: {table: logs, column: message}, mask_after_days: 9, reason: why}",
        ),
        "values stay there",
    ),
    ("RP022", 6, own(DEBUG.replace("reason", "region: eu, reason")), "set region under [retention]"),
    ("RP023", 6, own("a: {where: {table: runs}, minimum_days: 99999, reason: why}"), "more than a hundred years"),
    ("RP024", 6, own("a: {where: {team: x}, budget_bytes: 9, reason: why}"), "leave team out of where"),
    ("RP025", 6, own("a: {where: {table: logs}, downsample: {after_days: 3, interval: 1m}, reason: w}"), "name one of"),
    # what is demanded of places
    ("RP002", 7, demanding("{where: {}, encrypted: false, reason: w}"), "cannot be False"),
    ("RP002", 7, demanding("{where: {tabel: logs}, encrypted: true, reason: w}"), "did you mean 'table'?"),
    ("RP003", 7, demanding("{where: {}, encrypted: true, reason: w}").replace("owner:", "# own"), "the demand 'a'"),
    ("RP005", 7, demanding("{where: {table: lgos}, encrypted: true, reason: w}"), "did you mean 'logs'?"),
    ("RP028", 7, demanding("{where: {table: logs}, reason: w}"), "asks nothing"),
    ("RP028", 7, demanding("{where: {class: raw, table: runs}, encrypted: true, reason: w}"), "no table"),
    ("RP029", 7, demanding("{where: {table: runs}, regions: [a], reason: w}, b: {where: {}, regions: [b], reason: w}"),
     "'b' wants other regions for runs than 'a'"),
    ("RP029", 7, demanding("{where: {}, keys: [k], reason: w}, b: {where: {table: 'ru?s'}, keys: [l, m], reason: w}"),
     "'b' wants other keys for runs than 'a'"),
    # what rules say of each other
    ("RP010", 6, own("a: {where: {table: logs}, minimum_days: 9, maximum_days: 8, reason: why}"), "raise maximum_days"),
    ("RP010", 6, own("a: {where: {table: logs}, minimum_days: 9, delete_after_days: 8, reason: why}"), "raise delete_"),
    ("RP010", 6, own("a: {where: {table: logs}, delete_after_days: null, maximum_days: 8, reason: why}"), "for ever"),
    ("RP011", 6, own("a: {where: {kind: logs}, minimum_days: 90, reason: why}") + LATER, "agree on one of them"),
    ("RP014", 6, own("a: {where: {table: logs}, archive: {after_days: 40, to: x}, reason: why}"), "too late"),
    ("RP015", 6, own("a: {where: {class: raw}, delete_after_days: 7, reason: why}"), "'raw'"),
    ("RP017", 6, own("a: {where: {kind: samples}, delete_after_days: 7, reason: why}") + "  b: {where: {table: "
     "[gpu_samples, host_samples]}, delete_after_days: 8, reason: why}\n", "remove it"),
    ("RP021", 6, own("a: {where: {tag: prod}, delete_after_days: 9999, reason: w}"), "keep 'runs' at least 9,999 days"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "line", "text", "said"), MISTAKES, ids=[f"{one[0]}-{one[3]}" for one in MISTAKES])
def test_a_planted_mistake_is_found(tmp_path, code, line, text, said):
    """It comes with its file, its line and a remedy; an error keeps the policies from being used, a warning not."""
    place = folder(tmp_path, text)
    found = [one for one in lint_policies(CONTRACTS, place, today=TODAY) if one.code == code]
    mine = [one for one in found if one.at.file.name == "mine.yaml" and said in str(one)]
    assert mine, [str(one) for one in lint_policies(CONTRACTS, place, today=TODAY)]
    wanted = line + 1 if (code in {"RP003", "RP019"}) and "review" not in said and line == 6 else line
    assert mine[0].at.line == wanted
    assert mine[0].hint
    if mine[0].error:
        with pytest.raises(PolicyError):
            load_policies(CONTRACTS, place)
    else:
        assert load_policies(CONTRACTS, place).rules


def test_thirty_and_more():
    """The list is as long as was promised, and every code is planted."""
    assert len(MISTAKES) >= 30
    assert {one[0] for one in MISTAKES} | {"RP008", "RP012"} == {*ERRORS, *WARNINGS}


def test_data_without_a_policy(tmp_path):
    """A class without a rule is a gap, and its tables are named; a rule for one of them leaves the others."""
    (tmp_path / "mine.yaml").write_text(own("a: {where: {table: steps}, delete_after_days: 7, reason: why}"))
    found = [one for one in lint_policies(CONTRACTS, tmp_path, today=TODAY) if one.code == "RP008"]
    raw = next(one for one in found if "'raw'" in one.message)
    assert raw.at.line == 5
    assert "scalars" in raw.message
    assert "steps" not in raw.message


def test_one_name_in_two_files(tmp_path):
    """Names are of rules, wherever they stand."""
    place = folder(tmp_path, own(DEBUG), other=own(DEBUG))
    (found,) = [one for one in lint_policies(CONTRACTS, place, today=TODAY) if one.code == "RP012"]
    assert (found.at.file.name, found.at.line) == ("other.yaml", 6)


def test_rules_of_a_region(tmp_path):
    """They apply where the lake is there, and only there."""
    place = folder(tmp_path, own(DEBUG.replace("reason", "region: eu, reason")))
    assert "debug" in {rule.name for rule in load_policies(CONTRACTS, place, "eu").rules}
    assert "debug" not in {rule.name for rule in load_policies(CONTRACTS, place, "us").rules}
    with pytest.raises(PolicyError, match="no region is configured"):
        load_policies(CONTRACTS, place)


def test_what_is_allowed_is_not_found(tmp_path):
    """Rules that say what they mean have no finding, not even a warning; nor have the packaged ones."""
    text = own(DEBUG) + "".join(
        f"  {rule}\n"
        for rule in (
            "prod: {where: {tag: [tier=prod]}, delete_after_days: 365, reason: why}",
            "loss: {where: {metric: train/*}, delete_after_days: 180, reason: why}",
            "law: {where: {class: accounting}, minimum_days: 2555, reason: why}",
            "privacy: {where: {kind: logs}, maximum_days: 180, reason: why}",
            "size: {where: {table: logs}, budget_bytes: 1000000, reason: why}",
            "all: {where: {}, maximum_days: 36500, everything: true, tier: 2, reason: why}",
        )
    ).replace("delete_after_days: 365", "delete_after_days: 100").replace("36500", "2555")
    assert [str(one) for one in lint_policies(CONTRACTS, folder(tmp_path, text), today=TODAY)] == []
    assert lint_policies(CONTRACTS, today=TODAY) == []


def test_an_empty_folder(tmp_path):
    """It is said to be empty, and no policy is made up."""
    with pytest.raises(PolicyError, match="no policy file in the folder"):
        load_policies(CONTRACTS, tmp_path)


@pytest.mark.parametrize("path", [PACKAGED / "defaults.yaml", PACKAGED / "tests/defaults.yaml"])
def test_the_schema_is_json_schema(path):
    """The shipped schema accepts what is shipped, and refuses what lint refuses for its shape."""
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    (document,) = read_policies(path).documents.values()
    jsonschema.validate(document.content, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document.content, "further": 1}, schema)
