"""Names are nouns for things and verbs for actions: words that say neither are no names.

python tests/package/test_words.py --write    list the files that are not clean yet, after some became so
"""

import ast
import itertools
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src/ranklake", "capture", "flows", "lake", "quality", "retention")
BANNED = {
    *("told", "said", "found", "one", "some", "what", "whose", "mend", "books", "glass"),
    *("Told", "Standing", "Upkept", "Swept", "Driven", "Ingested"),
}
BANNED |= {f"_{word}" for word in BANNED}
NAME_NOTHING = frozenset(
    """
    Allowed Anew Answered Asked Asking AtHand Begun Behind Broken Coded Copied Counted Done Doubt Due Elapsed
    Ended Exported Exposed Filed Found Gathering Generated Given Gone Guarded Hashed Held Hiding Hit Identified
    Isolated Judged Kept Known Lead Listed Loaded Masked Missed Needed Nothing Outdated Plotted Published
    Refreshed Registered Rehashed Rehydrated Rejudging Removed Sampled Scanned Seen Shown Spooled Stay Taken
    Then Trained Translated Turns Unrecorded Unsearched Until Up UpTo Used Waiting Wanted Whole Whom Written
    absences admitted affected agreed aligned alike allowed among approved archived around assembled assigned
    because become believed below beneath beside between beyond broken bucketed busy cancelled captured chained
    changed checked chooses chosen cleared clipped coded coloured combined concatenated concerns conformed
    contained continued converted cooled corrected covered damaged dead decoded defined denied died dies
    distributed documented downsampled draws driven earliest edged edited elapsed elected elsewhere emptied
    encoded erased errored escaped everybody everything expired explained explains extended fetched firsts fits
    folded followed foreseen former frozen gained gathered given gone grouped how hurry identified implied
    imported in inside installed interrupted is journalled judged lacks lasted late left linked lists loaded
    located locked looks loses lowered matched maybe means meant measured melted merged misplaced most moved
    muted narrowed near nearest needed news nobody none normalized numbered once only ours outdated outlived
    outside overtaken owed paced packed paged paired passes past performed placed plotted previous proved
    qualified quarantined quietly quoted reaches recalled received recomputed recovered refreshed refuses
    registered rehydrated rejected released remains renamed repeats requested required resolved restored resumed
    retained rewritten rounded safely same sampled scaled scanned scheduled sealed searched selected serves
    settled shadowed short signed slept slips smoothed sorted sourced spanned spawned speaks spelled spelt
    spoilt stacked stamped stands starred stopped stored submitted surer swapped switched tagged taken tells
    tested there thinned throttled together trains tried trimmed twice twins typed unaccounted unbroken
    unchanged uncoloured uncovered under undisputed unexplained unfinished united unmarked unmasked unmigrated
    unnamed unpacked unpadded unplaced unproven unreleased unreported unreviewed unsigned unverified upgraded
    upright upwards used uses validated vanished varies veiled verified viewed wanted wants was watched widened
    wider with worded worst wrapped yes
    """.split()  # noqa: SIM905 - a list of words, one a line, is three hundred lines
)
"""Participles, adverbs, pronouns and verbs without a noun: a function is a verb or the noun that it returns."""
UNCLEAN = Path(__file__).with_name("words_unclean.txt")
"""Files that still have such names, a line each: fields that commands print as JSON, whose keys stay.

A file is taken out when it is clean, and none is put in.
"""


def names(tree):
    """Yield the names that a module gives to classes, functions, parameters and variables, with their lines.

    Those of comprehensions are left out: there ``one`` is read in the line that gives it.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg) and node.arg != "what":  # what went wrong, of each error
            yield node.arg, node.lineno
        elif isinstance(node, ast.comprehension):
            for inner in ast.walk(node.target):
                inner.ctx = ast.Load()
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr != "what":  # likewise
            yield node.attr, node.lineno
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.lineno


def modules():
    """Yield every module once: rooms are links below the package, too."""
    own = ROOT / "src/ranklake"
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        if not (path.is_relative_to(own) and path.relative_to(own).parts[0] in FOLDERS):
            yield path


@cache
def unclean():
    """Return the banned names of each file that has any, as ``line: name``, by the file's path."""
    result = {}
    for path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        words = [f"{line}: {name}" for name, line in names(tree) if name in BANNED]
        if words:
            result[path.relative_to(ROOT).as_posix()] = words
    return result


def test_functions_and_classes_name_what_they_do_or_are():
    """`_shown(value)` says that something happened; `_cell_text(value)` says what comes back. Properties may be so."""
    wrong = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                is_property = any("property" in ast.unparse(item) for item in node.decorator_list)
                if node.name.strip("_") in NAME_NOTHING and not is_property:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert not wrong, "\n".join(wrong)


def listed():
    """Return the files that may still have such names."""
    return set(UNCLEAN.read_text(encoding="utf-8").split())


def test_no_file_gets_a_banned_name():
    """A clean file stays clean: the failure names file, line and word."""
    wrong = {path: words for path, words in unclean().items() if path not in listed()}
    assert not wrong, "\n".join(f"{path}:{word}" for path, words in wrong.items() for word in words)


def test_the_list_of_unclean_files_shrinks():
    """Whoever cleans a file takes it off the list: ``python tests/package/test_words.py --write``."""
    assert not listed() - set(unclean())


SECTIONS = {"Parameters", "Attributes"}


def described(node):
    """Yield the names that the sections Parameters and Attributes of a docstring describe."""
    lines = (ast.get_docstring(node) or "").split("\n")
    section = ""
    for line, following in itertools.pairwise(lines):
        if re.fullmatch("-{3,}", following):
            section = line
        elif section in SECTIONS and re.fullmatch(r"[\w*][\w*, ]*", line) and following.startswith("    "):
            yield from (name.strip("* ") for name in line.split(","))


def bound(node):
    """Return the parameters of a function, or the fields, methods and own attributes of a class."""
    within = [node] if isinstance(node, ast.ClassDef) else [node.args]
    return {
        name
        for inner in within
        for item in ast.walk(inner)
        for name in (
            *([item.arg] if isinstance(item, ast.arg) else []),
            *([item.id] if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store) else []),
            *([item.attr] if isinstance(item, ast.Attribute) else []),
            *([item.name] if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) else []),
        )
    }


def test_docstrings_describe_what_is_there():
    """A parameter or field that is renamed is renamed in its docstring, too; not checked in classes that inherit."""
    wrong = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
            names = set() if set(bases) - {"NamedTuple"} else set(described(node))
            gone = names - bound(node) if names else ()
            wrong += [f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has no {name}" for name in gone]
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    UNCLEAN.write_text("".join(f"{path}\n" for path in unclean()), encoding="utf-8")
