"""What is wrong in a contract file is said with its line, in one line, with a mend."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranklake.lake.contracts import ContractError, contract, load_contracts
from ranklake.lake.contracts.build import Document
from ranklake.lake.contracts.load import PACKAGED
from ranklake.lake.contracts.schema import validate

GOOD = """\
table: things
version: 2
kind: derived
owner: me
steward: me
summary: "Things."
grain: [thing]
partition: [date]
sort: [thing]
retention: raw
columns:
  - id: 20
    name: thing
    type: int64
    unit: none
    class: operational
    required: true
    doc: "Number of the thing."
    checks:
      - {id: thing_from_zero, kind: between, min: 0, on_fail: quarantine}
  - id: 21
    name: date
    type: date
    class: operational
    required: true
    doc: 'UTC date.'
checks:
  - {id: things_unique, kind: unique, columns: [thing]}
retired:
  - {id: 22, name: old, type: string, retired_in: 2, reason: "Nobody used it."}
rollup: {inputs: [{table: steps}]}
"""

# what replaces what, the line that must be named, what must be said
BROKEN = {
    "key": ("steward: me", "stewerd: me", 5, "unknown key 'stewerd' in the file; did you mean 'steward'?"),
    "column key": ("    unit: none", "    unti: none", 15, "unknown key 'unti' in columns[0]; did you mean 'unit'?"),
    "type": ("    type: int64", "    type: int46", 14, "columns[0].type cannot be 'int46'; did you mean 'int64'?"),
    "class": ("    class: operational\n    required: true\n    doc: 'UTC", "    class: operatoinal\n    doc: 'UTC", 24,
              "did you mean 'operational'?"),
    "kind of check": ("kind: between", "kind: betwen", 20, "did you mean 'between'?"),
    "check key": ("on_fail: quarantine", "onfail: quarantine", 20, "did you mean 'on_fail'?"),
    "missing key": ("    doc: 'UTC date.'\n", "", 21, "lacks the key 'doc'"),
    "missing top key": ("owner: me\n", "", 1, "lacks the key 'owner'"),
    "text for a number": ("  - id: 21", "  - id: twenty", 21, "columns[1].id must be a whole number, not text"),
    "number for text": ("table: things", "table: 5", 1, "table must be text, not a number"),
    "bool for a number": ("version: 2", "version: true", 2, "version must be a whole number, not true or false"),
    "name with capitals": ("    name: thing", "    name: Thing", 13, "does not match"),
    "id twice": ("  - id: 21", "  - id: 20", 21, "column id 20 is taken by 'thing'"),
    "id of a retired column": ("  - id: 21", "  - id: 22", 21, "taken by retired 'old'"),
    "name twice": ("    name: date", "    name: thing", 22, "column name 'thing' is taken"),
    "name of a retired column": ("    name: date", "    name: old", 22, "column name 'old' is taken"),
    "unit of a date": ("    type: date", "    type: date\n    unit: s", 24, "is date and has a unit"),
    "grain": ("grain: [thing]", "grain: [thnig]", 7, "grain names no column 'thnig'; did you mean 'thing'?"),
    "sort": ("sort: [thing]", "sort: [thing, dat]", 9, "did you mean 'date'?"),
    "empty grain": ("grain: [thing]", "grain: []", 7, "must not be empty"),
    "check without its parameter": ("kind: between, min: 0", "kind: between", 20, "lacks min or max"),
    "check of an unknown column": ("columns: [thing]}", "columns: [thign]}", 28, "did you mean 'thing'?"),
    "quarantine of a table": ("columns: [thing]}", "columns: [thing], on_fail: quarantine}", 28, "judges the table"),
    "table check on a column": ("kind: between, min: 0", "kind: row_count, min: 0", 20, "move it to the table's"),
    "at_most of one": ("kind: unique, columns: [thing]", "kind: at_most, columns: [thing]", 28, "name two"),
    "check id twice": ("id: things_unique", "id: thing_from_zero", 28, "'thing_from_zero' appears twice"),
    "key twice": ("owner: me", "owner: me\nowner: you", 5, "key 'owner' appears twice"),
    "nested key twice": ("    type: date", "    type: date\n    type: string", 24, "key 'type' appears twice"),
    "syntax": ("grain: [thing]", "grain: [thing", 8, "not usable YAML"),
    "tab": ("owner: me", "\towner: me", 4, "not usable YAML"),
    "wrong table": ("table: things", "table: thinks", 1, "'thinks' stands in things.yaml"),
}  # fmt: skip


def written(folder, text):
    """Put a contract into an overlay and load it."""
    (folder / "things.yaml").write_text(text, encoding="utf-8")
    (folder / "rollups").mkdir(exist_ok=True)
    (folder / "rollups" / "things.sql").write_text("SELECT 1 AS thing, $date AS date")
    return contract("things", folder)


def test_the_good_one_is_good(tmp_path):
    """The contract that the broken ones are made from loads, so that each fails for its own reason."""
    assert written(tmp_path, GOOD).names == ("thing", "date")


@pytest.mark.parametrize("case", BROKEN)
def test_broken_contracts_are_told_with_their_line(tmp_path, case):
    """Every mistake is one line: file, line, what, and a mend or the nearest right word."""
    old, new, line, what = BROKEN[case]
    assert GOOD.count(old) == 1
    with pytest.raises(ContractError) as broken:
        written(tmp_path, GOOD.replace(old, new))
    messages = [str(error) for error in (broken.value, *broken.value.others)]
    assert any(message.startswith(f"{tmp_path / 'things.yaml'}:{line}: ") and what in message for message in messages)
    assert "\n" not in "".join(messages)
    assert broken.value.exit_code == 2


def test_all_that_is_wrong_with_an_overlay_is_told_at_once(tmp_path):
    """Each with its file and line: first what the forms of files are, then what their parts say of each other."""
    (tmp_path / "rollups").mkdir()
    (tmp_path / "rollups" / "things.sql").write_text("SELECT 1 AS thing, $date AS date")
    (tmp_path / "things.yaml").write_text(GOOD.replace("type: int64", "type: int46").replace("owner: me", "ownr: me"))
    (tmp_path / "steps.yaml").write_text("extends: steps\nretention: 7\n")
    assert errors_of(tmp_path) == [
        "steps.yaml:2: retention must be text, not a number",
        "things.yaml:1: the file lacks the key 'owner'; add owner: …",
        "things.yaml:4: unknown key 'ownr' in the file; did you mean 'owner'?",
        "things.yaml:14: columns[0].type cannot be 'int46'; did you mean 'int64'?",
    ]
    text = GOOD.replace("grain: [thing]", "grain: [thnig]").replace("    name: date", "    name: thing")
    (tmp_path / "things.yaml").write_text(text.replace("kind: between, min: 0", "kind: between"))
    (tmp_path / "steps.yaml").write_text("extends: steps\npackaged_columns:\n- {name: los}\n- {name: stp}\n")
    assert [line.partition(";")[0] for line in errors_of(tmp_path)] == [
        "steps.yaml:3: no packaged column 'los'",
        "steps.yaml:4: no packaged column 'stp'",
        "things.yaml:7: grain names no column 'thnig'",
        "things.yaml:8: partition names no column 'date'",
        "things.yaml:11: derived table 'things' has no column 'date' of type date",
        "things.yaml:20: check 'thing_from_zero' (between) lacks min or max",
        "things.yaml:22: column name 'thing' is taken",
    ]


def errors_of(folder):
    """Return what is wrong with an overlay, without the folder's name."""
    with pytest.raises(ContractError) as broken:
        load_contracts(folder)
    return [str(error).removeprefix(f"{folder}/") for error in (broken.value, *broken.value.others)]


@pytest.mark.parametrize("text", ["", "[]", "just words", "5", "null"])
def test_files_that_are_no_mapping_are_refused(tmp_path, text):
    """An empty file, a list or a word is no contract."""
    with pytest.raises(ContractError, match="the file must be a mapping"):
        written(tmp_path, text)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    """A binary file under a contract's name is an error with the file's name."""
    (tmp_path / "things.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ContractError, match=r"things\.yaml: cannot be read"):
        contract("things", tmp_path)


def test_words_that_yaml_1_1_takes_for_truth_stay_words(tmp_path):
    """`on`, `no` and dates are text, as in YAML 1.2; 1e-3 is a number."""
    text = GOOD.replace("min: 0", "min: 1e-3").replace("owner: me", "owner: on").replace("steward: me", "steward: no")
    text = text.replace("    doc: 'UTC date.'", "    doc: 'UTC date.'\n    deprecated: 2026-01-31")
    found = written(tmp_path, text)
    assert (found.owner, found.steward) == ("on", "no")
    assert found.column("thing").checks[0].min == 0.001
    assert found.column("date").deprecated == "2026-01-31"


PACKAGED_TABLES = sorted(path for path in PACKAGED.glob("*.yaml") if path.stem != "_envelope")


@settings(deadline=None)
@given(st.data())
def test_a_misspelling_anywhere_is_found_on_its_line(tmp_path_factory, data):
    """Whichever column of whichever packaged table is misspelt, the line named is the one that was edited."""
    path = data.draw(st.sampled_from(PACKAGED_TABLES))
    lines = path.read_text(encoding="utf-8").splitlines()
    candidates = [number for number, line in enumerate(lines) if re.search(r"\bclass: |\bdoc: |\bkind: between", line)]
    number = data.draw(st.sampled_from(candidates))
    mutations = {"class: ": "klass: ", "doc: ": "docc: ", "kind: between": "kind: betwixt"}
    old = data.draw(st.sampled_from([old for old in mutations if old in lines[number]]))
    lines[number] = lines[number].replace(old, mutations[old], 1)
    broken = tmp_path_factory.mktemp("broken") / path.name
    broken.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ContractError) as refused:
        validate(Document(broken), "contract")
    pattern = re.compile(rf"{path.name}:{number + 1}: (unknown key|\S+\.kind cannot be 'betwixt')")
    assert any(pattern.search(str(error)) for error in (refused.value, *refused.value.others))
