"""Names are nouns for things and verbs for actions: words that say neither are no names.

python tests/package/test_words.py --write    list the files that are not clean yet, after some became so
"""

import ast
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
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.lineno


def unclean():
    """Return the banned names of each file that has any, as ``line: name``, by the file's path."""
    own = ROOT / "src/ranklake"
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    result = {}
    for path in sorted(paths):
        if path.is_relative_to(own) and path.relative_to(own).parts[0] in FOLDERS:
            continue  # a room, by its link
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


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    UNCLEAN.write_text("".join(f"{path}\n" for path in unclean()), encoding="utf-8")
