"""Our reading of `schema.json` gives the verdicts of jsonschema."""

import json
from copy import deepcopy

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranklake.lake.contracts.build import Document
from ranklake.lake.contracts.load import PACKAGED, ROOM
from ranklake.lake.contracts.schema import problems, schema

WHOLE = json.loads((ROOM / "schema.json").read_text(encoding="utf-8"))
WHOLE["$defs"]["check_kind"] = schema("check_kind")
READ = {
    "$ref", "type", "enum", "pattern", "minLength", "minimum", "minItems", "items", "minProperties", "properties",
    "propertyNames", "required", "additionalProperties",
}  # fmt: skip
FILES = {path.stem: Document(path).content for path in sorted([*PACKAGED.glob("*.yaml"), ROOM / "metrics.yaml"])}


def definition_of(stem):
    """Name the definition that a packaged file must satisfy."""
    return {"_envelope": "envelope", "metrics": "metrics"}.get(stem, "contract")


def oracle(name):
    """Return jsonschema's validator for one definition."""
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": WHOLE["$defs"]})


def rules_in(node):
    """Yield every schema within a schema."""
    yield node
    for inner in node.get("properties", {}).values():
        yield from rules_in(inner)
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from rules_in(node[key])


def test_the_schema_is_one():
    """`schema.json` is a valid JSON Schema, and uses no keyword that we do not read."""
    jsonschema.Draft202012Validator.check_schema(WHOLE)
    for definition in WHOLE["$defs"].values():
        for rules in rules_in(definition):
            assert set(rules) <= READ


@pytest.mark.parametrize("stem", FILES)
def test_packaged_files_satisfy_it(stem):
    """Every packaged file is valid, in our reading and in jsonschema's."""
    name = definition_of(stem)
    assert list(problems(FILES[stem], schema(name))) == []
    oracle(name).validate(FILES[stem])


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    # whole floats are left out: JSON Schema takes 1.0 for an integer, we do not take "version: 1.0"
    st.floats(allow_nan=False, allow_infinity=False, width=16).filter(lambda value: not value.is_integer()),
    st.sampled_from(["", "x", "X y", "int64", "personal", "2026-01-01", "error", "between", "a.b"]),
    st.just([]),
    st.just({}),
    st.just(["x", 1]),
    st.just({"name": "x"}),
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutations_get_the_same_verdict(data):
    """Wherever a value is replaced, dropped or added, both say valid or both say invalid."""
    stem = data.draw(st.sampled_from(["steps", "rejects", "metrics", "_envelope"]))
    document = deepcopy(FILES[stem])
    node = document
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if isinstance(node[key], dict | list) and data.draw(st.booleans()):
            node = node[key]
            continue
        action = data.draw(st.sampled_from(["replace", "drop", "add"]))
        if action == "replace":
            node[key] = data.draw(ODD)
        elif action == "drop":
            del node[key]
        elif isinstance(node, dict):
            node[data.draw(st.sampled_from(["extra", "doc", "min", "unit", "status"]))] = data.draw(ODD)
        else:
            node.append(data.draw(ODD))
        break
    name = definition_of(stem)
    assert (not list(problems(document, schema(name)))) == oracle(name).is_valid(document)
