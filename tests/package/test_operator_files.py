"""Files of operators: whatever stands in one, each fault has its line, and all are told at once."""

import re
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from pydantic import Field

from ranklake.capture.importers.mapping_reader import load_mapping
from ranklake.errors import RanklakeError
from ranklake.lake.contracts.capture_masks import load_capture_masks
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.migrations.migration import read_migration
from ranklake.operator_files import OperatorFile, OperatorFileError


@dataclass(frozen=True, slots=True)
class Part:
    """A part."""

    name: str
    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    until: date | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """A file."""

    version: Literal[1]
    parts: Annotated[tuple[Part, ...], Field(min_length=1)]
    tags: dict[str, str | list[str]] = field(default_factory=dict)


BOMB = "a: &a [xx, xx]\n" + "".join(
    f"{key}: &{key} [{', '.join(['*' + before] * 9)}]\n" for before, key in pairwise("abcdefghi")
)


def faults(text, model=Whole, **options):
    """Return what is wrong with a text, without the name of the file."""
    with pytest.raises(OperatorFileError) as caught:
        OperatorFile(Path("x.yaml"), text, **options).load(model)
    return [str(error).removeprefix("x.yaml:") for error in (caught.value, *caught.value.others)]


def test_a_sound_file_becomes_its_model():
    """Lists become tuples, days dates, whole numbers numbers where the model says so; YAML's ``on`` stays text."""
    text = "version: 1\nparts: [{name: on, share: 1, until: 2027-06-30}]\ntags: {a: b, c: [d]}\n"
    assert OperatorFile(Path("x.yaml"), text).load(Whole) == Whole(
        1, (Part("on", 1.0, date(2027, 6, 30)),), {"a": "b", "c": ["d"]}
    )


def test_all_faults_are_told_with_their_lines():
    """Unknown, missing and wrong values come in the order of lines, each once, also those within a union."""
    text = """version: 2
parts:
- nam: a
  share: 2
  until: soon
- 3
- {name: "5", share: "1"}
tags: {a: 1}
"""
    assert faults(text) == [
        "1: version cannot be 2; known: 1",
        "3: parts[0] lacks the key 'name'; add name: …",
        "3: unknown key 'nam' in parts[0]; did you mean 'name'?",
        "4: parts[0].share must be at most 1.0",
        "5: parts[0].until must be a day such as 2027-06-30, not 'soon'",
        "6: parts[1] must be a mapping, not a number",
        "7: parts[2].share must be a number, not text",
        "8: tags.a must be text or a list, not a number",
    ]


def test_a_wrong_key_below_names_with_a_pattern_gets_a_hint():
    """Such as ``for`` in a rule of alerts: JSON Schema keeps such mappings elsewhere."""
    model = dict[Annotated[str, Field(pattern="^[a-z]+$")], Part]
    assert faults("a: {name: b, shar: 1}\n", model) == ["1: unknown key 'shar' in a; did you mean 'share'?"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1: the file must be a mapping, not empty"),
        ("version: 1\nparts: []\n", "2: parts must not be empty"),
        ("version: 1\nversion: 1\n", "2: not usable YAML (key 'version' appears twice); fix the line"),
        ("version: [\n", "2: not usable YAML"),
        ("version: &a [*a]\n", "1: holds itself, or keys that are no text"),
        (BOMB, "1: has more than 16,777,216 characters without aliases"),
    ],
)  # fmt: skip
def test_what_is_no_such_file_is_one_fault(text, said):
    """Syntax, loops and aliases that would fill the memory are told before a model is asked."""
    (fault,) = faults(text)
    assert fault.startswith(said)


def test_the_sound_rest_is_kept():
    """Whoever goes on despite a fault gets the rest, and the faults."""
    file = OperatorFile(Path("x.toml"), 'share = 7\nname = "a"\nnme = 1\n', is_toml=True)
    part, errors = file.load_sound(Part)
    assert part == Part("a")
    assert [str(error) for error in errors] == [
        "x.toml:1: share must be at most 1.0",
        "x.toml:3: unknown key 'nme' in the file; did you mean 'name'?",
    ]


MASKS = "at_capture: {since: 2027-01-01, masked: [pseudonymous], masks: {personal: redact}, seen: [gpu_samples.host]}"
STEPS = "[{rename: a, to: b, until: 2027-06-30}, {split: a, into: {b: a}}, {merge: [a], into: c, by: a, back: {a: c}}]"
MIGRATION = f"{{number: 1, name: x, table: steps, from: 1, to: 2, digests: {{from: a, to: b}}, steps: {STEPS}}}"
MAPPING = """
{table: pools, run: r, time: {column: when, format: epoch_ms}, missing: [x], filters: [{column: a, in: [b], above: 1}],
 melt: {except: [a], name: b, value: c}, columns: {pool: name, gpu_total: {column: t, scale: 2},
 attributes: {json: [a]}, interval_ns: {column: l, unit: min}, gpu_type: {column: kind, values: {h: H100}, default: x}}}
"""
READERS = {
    "masks": (MASKS, lambda path: load_capture_masks(path, load_contracts())),
    "mapping": (MAPPING, lambda path: load_mapping(str(path))),
    "migration": (MIGRATION, read_migration),
}
VALUES = ["hash", None, 1, "", "a.b", "1/0", "2027-02-30", True, 10**40, [], {}, ["hash"], {1: "hash"}]


def places(node, path=()):
    """Yield the path of everything that stands in something."""
    for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield (*path, key)
        yield from places(node[key], (*path, key))


@pytest.mark.parametrize("reader", READERS)
def test_whatever_stands_in_a_file_is_read_or_refused_with_lines(tmp_path, reader):
    """Whichever value is another, each fault is a line of its own that names file and line."""
    text, read = READERS[reader]
    path = tmp_path / "0001_x.yaml"
    path.write_text(text)
    read(path)
    for (*outer, last), value in product(places(yaml.safe_load(text)), VALUES):
        content = node = yaml.safe_load(text)
        for key in outer:
            node = node[key]
        node[last] = value
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        try:
            read(path)
        except RanklakeError as error:
            for line in map(str, (error, *error.others)):
                assert re.match(rf"{re.escape(str(path))}:\d+: \S", line), line
                assert "\n" not in line
