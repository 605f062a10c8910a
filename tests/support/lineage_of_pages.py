"""Numbers of a page, each followed back to its bytes by the command that the page shows for it."""

import html
import json
import re
import shlex

from ranklake.cli import run


def commands_of(page):
    """Return the commands of a page that lead from its numbers to their bytes, each once; those of columns first."""
    commands = re.findall(r"<code>(ranklake lineage [^<]+)</code>", page)
    unique = dict.fromkeys(html.unescape(each) for each in commands)
    return sorted(unique, key=lambda each: "." not in shlex.split(each)[2])


def follow(command, places, capsys):
    """Return the exit status of a command, and what it prints as JSON."""
    capsys.readouterr()
    status = run([*shlex.split(command)[1:], *places, "--json"])
    return status, json.loads(capsys.readouterr().out)


def followed(page, places, capsys, count=10):
    """Follow so many numbers of a page; return the paths of the segments that each reaches, by its command.

    All digests verify, and each number reaches a segment. A table without rows of the run shows no number.
    """
    segments = {}
    for command in commands_of(page):
        status, result = follow(command, places, capsys)
        if not result["files"]:
            continue
        assert status == 0, (command, result["faults"])
        assert {each["state"] for each in (*result["files"], *result["segments"])} == {"verified"}, command
        assert bool(result["columns"]) == ("." in shlex.split(command)[2]), command
        segments[command] = {each["path"] for each in result["segments"]}
        assert segments[command], command
        if len(segments) == count:
            return segments
    raise AssertionError(f"the page has only {len(segments)} numbers")
