"""Names are nouns for things and verbs for actions: words that say neither are no names.

python tests/package/test_words.py --write    list the files that are not clean yet, after some became so
"""

import ast
import itertools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src/ranklake", "capture", "flows", "lake", "quality", "retention")
BANNED = {
    *("told", "said", "found", "one", "some", "what", "whose", "mend", "books", "glass"),
    *("Told", "Standing", "Upkept", "Swept", "Driven", "Ingested"),
}
BANNED |= {f"_{word}" for word in BANNED}
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


def unclean():
    """Return the banned names of each file that has any, as ``line: name``, by the file's path."""
    result = {}
    for path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        words = [f"{line}: {name}" for name, line in names(tree) if name in BANNED]
        if words:
            result[path.relative_to(ROOT).as_posix()] = words
    return result


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
