"""Terminals: what is shown is text; escape sequences and newlines in data are seen, and do nothing."""

import io
import os
import sys
from contextlib import contextmanager

import pytest
from governed import Site, any_rows

from ranklake.cli import run
from ranklake.printable import printable
from ranklake.terminal import Screen, guarded
from ranklake.views.tell import tell

EVIL = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b1mfine\r\nsteps  yes\u202e\x7f\udc9b"
ASK = ["sql", "SELECT message FROM events", "--format"]


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake with a message that would clear a terminal, set its clipboard and forge a line."""
    site = Site(tmp_path_factory.mktemp("lake"))
    site.bring(any_rows("events", 1, event=["log"], message=[EVIL.replace("\udc9b", "")]), "events")
    return site.lake.uri


LAST = "that was all"


@contextmanager
def terminal():
    """Put a pseudo-terminal in place of standard output and error; give what reads what came."""
    end, inner = os.openpty()
    with os.fdopen(inner, "w", encoding="utf-8") as stream, pytest.MonkeyPatch.context() as patched:
        for name in ("stdout", "stderr"):
            patched.setattr(sys, name, stream)

        def shown():
            stream.write(LAST)
            stream.flush()
            came = b""
            while not came.endswith(LAST.encode()):  # the kernel hands on what was written when it has time
                came += os.read(end, 2**16)
            return came.decode().removesuffix(LAST).replace("\r\n", "\n")  # a terminal makes CR and LF of a newline

        yield shown
    os.close(end)


def harmless(text):
    return all(one in "\n\t" or (one.isprintable() and one not in "\u202e\x9b") for one in text)


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_data_on_a_terminal_is_text(lake, form):
    """However rows are shown on a terminal, nothing of them but text gets there."""
    with terminal() as told:
        assert run([*ASK, form, "--lake", lake]) == 0
        shown = told()
    assert "fine" in shown
    assert harmless(shown), shown


def test_errors_on_a_terminal_are_text():
    """Nor does what an error quotes."""
    with terminal() as told:
        assert run(["status", "--lake", f"/nowhere/{EVIL[:20]}"]) != 0
        assert harmless(told())


def test_csv_for_a_file_is_what_is_stored(lake, capsys):
    """What goes to a program is not changed."""
    assert run([*ASK, "csv", "--lake", lake]) == 0
    assert "\x1b[2J" in capsys.readouterr().out


def test_a_name_forges_no_line(capsys):
    """A line that is told is one line, whatever the names in it hold."""
    tell(f"table {EVIL}", err=True)
    assert capsys.readouterr().err.count("\n") == 1
    assert printable("a\nb\tc\x1b\udc9b") == "a\\nb\\tc\\x1b\\udc9b"


def test_what_draws_on_purpose_may(monkeypatch):
    """A progress bar reaches the terminal behind the guard, which is gone afterwards."""

    class Fake(io.StringIO):
        def isatty(self):
            return True

    stream = Fake()
    monkeypatch.setattr(sys, "stderr", stream)
    with guarded():
        from rich.console import Console

        assert Console(stderr=True).file is stream
        assert sys.stderr is not stream
        print("\x1b[1m", file=sys.stderr)
    assert sys.stderr is stream
    assert stream.getvalue() == "\\x1b[1m\n"


def test_a_screen_moves_no_cursor_where_there_is_none(monkeypatch):
    """A dumb terminal gets lines one below the other, and no escape sequence."""
    for term, moves in (("xterm", True), ("dumb", False)):
        monkeypatch.setenv("TERM", term)
        with terminal() as told:
            screen = Screen(sys.stdout)
            screen.show(["one", EVIL])
            screen.show(["two"])
            shown = told()
        assert screen.is_terminal == moves
        assert ("\x1b[" in shown) == moves
        assert "two" in shown


def test_no_line_of_a_screen_goes_on_below(monkeypatch):
    """Letters that take two columns count as two: a line that wrapped would move all that come after it."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((10, 5)))
    with terminal() as told:
        Screen(sys.stdout).show(["\u6f22" * 9, "x" * 30, "\u0301" * 3])
        shown = told()
    first, second, *_ = shown.split("\n")
    assert first.startswith("\r" + "\u6f22" * 4 + "\x1b")
    assert second.startswith("x" * 9 + "\x1b")


@pytest.mark.parametrize("group", ["audit", "retain", "catalog", "incidents", "quality"])
def test_help_says_sentences_whole(group, capfd):
    """What a command does is not cut at the end of a line; `help` is `--help`."""
    assert run(["help", group]) == 0
    commands = capfd.readouterr().out.split("Commands:")[1]
    assert "Show " in commands
    assert "..." not in commands
