"""Files of operators: whatever stands in one, each fault has its line, and all are told at once."""

from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

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
