r"""The shell of ``ranklake sql`` at a real terminal: typed into, looked at, interrupted, left."""

import fcntl
import os
import pty
import re
import select
import stat
import struct
import subprocess
import sys
import termios
import time

import pytest
from click.testing import CliRunner
from governed import Site, any_rows
from rollup_inputs import NOON, append

from ranklake.commands.sql import sql
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.query.role_file import load_role
from ranklake.lake.store.lake import Lake
from ranklake.shell.names import candidates, names_of
from ranklake.shell.statements import is_whole, statements
from ranklake.shell.terminal import PrivateHistory, Shell, history, history_file, is_complete

PROMPT = "ranklake>"
TAKEN = "\x1b[?2004l"
"""What the line editor writes when it is left: the line is taken."""
EVIL = "\x1b]52;c;cm0gLXJm\x07\x1b[2Jfine"
ROLES = """
roles:
  guest: {classes: [operational], tables: [steps, run_summary], runs: "run LIKE 'open-%'"}
  crew: {classes: [operational], masked: [personal, pseudonymous], tables: [steps, runs, run_summary]}
  no one: {classes: [operational], tables: [steps]}
"""
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07|[=>])")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Give a folder with a lake of three runs, one message that would drive a terminal, and roles."""
    folder = tmp_path_factory.mktemp("shell")
    site = Site(folder)
    site.bring(any_rows("events", 1, event=["log"], message=[EVIL]), "events")
    lake = site.lake
    append(lake, "steps", [{"run": "open-1", "rank": 0, "step": n, "ts": NOON, "step_time_s": 0.5} for n in range(40)])
    for run in ("open-1", "open-2", "secret-3"):
        counts = dict.fromkeys(("non_finite_steps", "checkpoints", "productive_ns", "wall_ns", "stragglers"), 0)
        append(lake, "run_summary", [{"run": run, "ts": NOON, "end_ts": NOON, "status": "finished", **counts}])
    (folder / "roles.yaml").write_text(ROLES)
    (folder / "ranklake.toml").write_text('[sql]\nroles = "roles.yaml"\n')
    return folder


class Typed:
    """A shell in a pseudo-terminal of its own: a controlling one, so that Ctrl-C is a signal."""

    def __init__(self, place, home, *more, **environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(place)
            unset = {name: value for name, value in os.environ.items() if not name.startswith("RANKLAKE_")}
            os.environ.clear()
            os.environ.update(
                unset | {"HOME": str(home), "TERM": "xterm", "COLUMNS": "200", "LINES": "50"} | environment
            )
            os.environ.pop("XDG_STATE_HOME", None)
            os.execv(sys.executable, [sys.executable, "-m", "ranklake", "sql", "--lake", str(place / "lake"), *more])
        size = struct.pack("HHHH", int(environment.get("LINES", "50")), 200, 0, 0)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, size)
        self.said = ""

    def until(self, wanted, seconds=60):
        """Read until a text stands in what came since the last call, as it came or as it is seen; return that."""
        end = time.monotonic() + seconds
        while wanted not in self.said and wanted not in ESCAPES.sub("", self.said):
            assert time.monotonic() < end, f"no {wanted!r} in {self.said!r}"
            if select.select([self.fd], [], [], 1)[0]:
                try:
                    self.said += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    pytest.fail(f"it ended without {wanted!r}: {self.said!r}")
                if "\x1b[6n" in self.said:  # it asks where the cursor is
                    self.said = self.said.replace("\x1b[6n", "")
                    os.write(self.fd, b"\x1b[1;1R")
        cut = self.said.index(wanted) + len(wanted) if wanted in self.said else len(self.said)
        raw, self.said = self.said[:cut], self.said[cut:]
        return raw

    def type(self, text, wanted=PROMPT):
        """Type, and read until a text stands there."""
        os.write(self.fd, text.encode())
        return self.until(wanted)

    def interrupt(self, statement):
        """Type a statement, and press Ctrl-C until it is left; one that came a moment early ended the line.

        While the editor gives the terminal back, it is neither a key of the editor's nor a signal.
        """
        for _ in range(60):
            self.said = ""
            self.type(f"{statement}\r", statement[-6:])
            self.until(TAKEN)
            pressed = -1.0
            while not any(text in self.said for text in ("interrupted", PROMPT)):
                if time.monotonic() - pressed > 1:
                    os.write(self.fd, b"\x03")
                    pressed = time.monotonic()
                if select.select([self.fd], [], [], 0.1)[0]:
                    self.said += os.read(self.fd, 65536).decode(errors="replace")
            if "interrupted" in self.said:
                self.until("interrupted")
                return
            self.until(PROMPT)
        pytest.fail(f"it goes on: {self.said!r}")

    def leave(self, keys="\x04"):
        """Leave by keys; return the exit status."""
        os.write(self.fd, keys.encode())
        while True:
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return status


@pytest.mark.slow
def test_a_session_at_a_terminal(place, tmp_path):
    r"""One session: rows, errors, \d, \timing, \x, completion, Ctrl-C in a line and in a query, Ctrl-D."""
    shell = Typed(place, tmp_path, PAGER="cat")
    assert "Ctrl-D to leave" in shell.until(PROMPT)
    assert "40" in shell.type("SELECT count(*) AS n\nFROM steps;\r", "(1 row)")
    shell.until(PROMPT)
    shell.type("SELECT * FROM stps;\r", "did you mean 'steps'?")
    shell.until(PROMPT)
    shell.type("\\d steps\r", "Wall time of the whole step")
    shell.type("\\pager off\r", "the pager is off")
    shell.type("\\timing\r", "timing is on")
    shell.type("\\x on\r", "vertical mode is on")
    shown = shell.type("SELECT message FROM events;\r", " s)")
    assert "row 1" in shown
    assert "\\x1b]52" in shown
    assert "\x1b]52" not in shown
    assert "\x1b[2J" not in shown
    assert re.search(r"\(\d+\.\d{3} s\)", shown)
    shell.type("SELECT count(*) FROM run_summary WHERE run = 'sec\t", "ret-3")
    shell.type("\x03")
    sums, far = " + ".join(f"{one}.step" for one in "abcdef"), ", ".join(f"steps {one}" for one in "abcdefg")
    shell.interrupt(f"SELECT count(*) FROM {far} WHERE {sums} < g.step;")
    shell.type("SELECT 1;\r", "(1 row)")
    shell.until(PROMPT)
    assert shell.leave() == 0
    kept = tmp_path / ".local/state/ranklake/sql-history"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    assert "FROM stps" in kept.read_text()


@pytest.mark.slow
def test_a_long_result_goes_to_the_pager_and_a_role_to_the_prompt(place, tmp_path):
    """What has more lines than the terminal is shown by $PAGER; the role stands in the prompt."""
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\necho PAGED; wc -l > {tmp_path}/seen\n")
    pager.chmod(0o755)
    shell = Typed(place, tmp_path, "--role", "guest", PAGER=str(pager), LINES="10")
    shell.until("ranklake as guest>")
    shell.type("SELECT step FROM steps;\r", "PAGED")
    shell.until("ranklake as guest>")
    assert int((tmp_path / "seen").read_text()) >= 40
    shell.type("SELECT * FROM runs;\r", "unknown table")
    shell.until("ranklake as guest>")
    assert shell.leave("\\q\r") == 0
    assert (tmp_path / ".local/state/ranklake/sql-history-guest").exists()


def words(names, before, after=""):
    return [word for word, _ in candidates(before, after, names, ("\\d", "\\x"))]


@pytest.fixture(scope="module")
def names(place):
    lake = Lake.open(str(place / "lake"))
    return names_of(lake, None, lake.contracts())


@pytest.mark.parametrize(
    ("before", "wanted", "unwanted"),
    [
        ("SELECT * FROM ste", "step_rollup", "step_time_s"),
        ("SELECT * FROM steps, runs s JOIN gp", "gpu_samples", "count"),
        ("SELECT step_t", "step_time_s", "steps"),
        ("SELECT s.step_t", "step_time_s", "SELECT"),
        ("SELECT cou", "count", "steps"),
        ("sel", "SELECT", "steps"),
        ("\\d ste", "steps", "step_time_s"),
        ("\\", "\\x", "steps"),
        ("SELECT * FROM steps WHERE run = 'open", "open-2", "secret-3"),
        ("SELECT * FROM steps WHERE run IN ('open-1', 'sec", "secret-3", "open-1"),
        ("SELECT 'it''s' FROM scalars WHERE metric = 'train/l", "train/loss", "open-1"),
    ],
)
def test_what_is_completed(names, before, wanted, unwanted):
    """Tables after FROM, columns of the tables that are named, functions, runs and metrics in quotes."""
    found = words(names, before, " FROM steps s")
    assert wanted in found
    assert unwanted not in found


def test_completion_keeps_to_the_role(place):
    """Tables, columns and runs that a role does not see are not offered."""
    lake = Lake.open(str(place / "lake"))
    contracts = lake.contracts()
    guest = names_of(lake, load_role(place / "roles.yaml", "guest", contracts), contracts)
    assert set(guest.tables) == {"steps", "run_summary"}
    assert words(guest, "SELECT * FROM run") == ["run_summary"]
    assert words(guest, "SELECT hostn", " FROM runs") == []
    assert sorted(words(guest, "WHERE run = '")) == ["open-1", "open-2"]
    assert names_of(lake, load_role(place / "roles.yaml", "no one", contracts), contracts).runs == ()


def test_describing_keeps_to_the_role(place, capsys):
    r"""\d has the tables and columns that the role sees, and says how it sees them."""
    contracts = load_contracts()
    crew = load_role(place / "roles.yaml", "crew", contracts)
    shell = Shell(pytest.fail, contracts, crew, page=print)
    shell.take("\\d")
    assert "run_summary" in (listed := capsys.readouterr().out)
    assert "gpu_samples" not in listed
    shell.take("\\d runs")
    assert re.search(r"user +\| string +\| +\| pseudonymous +\| hash", capsys.readouterr().out)
    shell.take("\\d gpu_samples")
    assert "no table 'gpu_samples'" in capsys.readouterr().err
    shell.take("\\nothing")
    assert "\\? lists them" in capsys.readouterr().err


def test_the_history_holds_no_value_of_a_guarded_column(tmp_path):
    """Texts beside names of columns that are not operational are not kept; credentials never are."""
    path = tmp_path / "state" / "h"
    kept = PrivateHistory(path, frozenset({"user", "message"}))
    for one in (
        "SELECT * FROM steps WHERE run = 'r1'",
        "SELECT * FROM runs WHERE lower(User) = 'alice o''hara'",
        "SELECT * FROM logs WHERE message LIKE '%carol",
        "SELECT 'AKIAIOSFODNN7EXAMPLE'",
    ):
        kept.store_string(one)
    text = path.read_text()
    assert "run = 'r1'" in text
    assert not [name for name in ("alice", "hara", "carol", "AKIAIOSFODNN7EXAMPLE") if name in text]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_history_that_cannot_be_kept_is_told(tmp_path, monkeypatch):
    """A file that others put there as a link is not followed, and a role's name is no path."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "ranklake").mkdir()
    (tmp_path / "ranklake/sql-history").symlink_to(tmp_path / "elsewhere")
    _, why = history(None, ())
    assert "not kept" in why
    assert not (tmp_path / "elsewhere").exists()
    assert history_file("../../etc").parent == tmp_path / "ranklake"


def test_an_old_history_is_shortened(tmp_path):
    """Beyond half a megabyte the older half goes, at the border of an entry."""
    path = tmp_path / "h"
    path.write_text("".join(f"\n# 2026-01-01 00:00:00\n+SELECT {n:0200}\n" for n in range(4000)))
    kept = list(PrivateHistory(path, frozenset()).load_history_strings())
    assert 1000 < len(kept) < 3000
    assert kept[0].endswith("3999")
    assert path.stat().st_size < 512 * 1024


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT ';' ; -- two;\nSELECT \";\" /* ; */;", ["SELECT ';'", '-- two;\nSELECT ";" /* ; */']),
        ("-- nothing\n;;", []),
        ("", []),
    ],
)
def test_statements_end_with_semicolons(text, parts):
    """Semicolons in quotes and comments end nothing; comments alone are no statement."""
    assert statements(text) == parts


def test_enter_ends_what_is_whole():
    """A statement ends with a semicolon or an empty line; a command with its line."""
    assert [is_whole(one) for one in ("SELECT 1;", "SELECT ';", "SELECT 1; -- end", "SELECT 1; x")] == [1, 0, 1, 0]
    assert [is_complete(one) for one in ("\\d", "quit", "SELECT 1", "SELECT 1\n", " ")] == [1, 1, 0, 1, 1]


def run_sql(place, *arguments, **more):
    return CliRunner().invoke(sql, [*arguments, "--lake", str(place / "lake")], **more)


def test_statements_come_from_files_and_standard_input(place, tmp_path):
    """Each statement of a file is answered in order; without one, and without a terminal, what to do is said."""
    (tmp_path / "two.sql").write_text("-- first\nSELECT 1 AS one;\nSELECT 2 AS two;\n")
    assert re.findall(r"one|two", run_sql(place, "-f", str(tmp_path / "two.sql")).output) == ["one", "two"]
    assert "(1 row)" in run_sql(place, input="SELECT count(*) FROM steps").output
    assert "(1 row)" in run_sql(place, "-f", "-", input="SELECT count(*) FROM steps;").output
    assert "there is no statement" in str(run_sql(place, input="").exception)
    assert "leave one out" in str(run_sql(place, "SELECT 1", "-f", "-").exception)
    both = run_sql(place, "-f", str(tmp_path / "two.sql"), "--json")
    assert "2 statements, and the format json takes one" in str(both.exception)
    (tmp_path / "third.sql").write_text("SELECT 1;\n\n-- why\nSELECT 2;\n  SELECT los\nFROM steps;\n")
    assert str(run_sql(place, "-f", str(tmp_path / "third.sql")).exception).startswith("statement 3 of 3, line 5: ")
    assert "statement" not in str(run_sql(place, "SELECT los FROM steps").exception)
    (tmp_path / "bad.sql").write_bytes(b"SELECT '\xff'")
    assert "not UTF-8" in str(run_sql(place, "-f", str(tmp_path / "bad.sql")).exception)


def test_formats_for_people_and_pages(place, tmp_path):
    """Vertical and Markdown show text as text; --json is the format json; a workbook is refused with the mend."""
    text = "SELECT 'a|<b>[x](y)' AS \"na|me\", 1.5 AS n, NULL AS nothing"
    assert run_sql(place, text, "--format", "markdown").output.splitlines() == [
        "| na\\|me | n | nothing |",
        "| --- | ---: | --- |",
        "| a\\|&lt;b>\\[x\\](y) | 1.5 | NULL |",
    ]
    vertical = run_sql(place, text, "--format", "vertical").output.splitlines()
    assert vertical == ["-[ row 1 ]", "na|me   | a|<b>[x](y)", "n       | 1.5", "nothing | NULL", "(1 row)"]
    assert run_sql(place, "SELECT 1 AS n", "--json").output == '[{"n": 1}]\n'
    assert "two formats" in str(run_sql(place, "SELECT 1", "--json", "--format", "csv").exception)
    refused = run_sql(place, "SELECT 1", "--output", str(tmp_path / "a.xlsx"))
    assert "write a.csv, which spreadsheets open" in str(refused.exception)
    assert run_sql(place, "SELECT 1 AS n", "--output", str(tmp_path / "a.md")).exit_code == 0
    assert (tmp_path / "a.md").read_text() == "| n |\n| ---: |\n| 1 |\n"


COMPLETED = {
    "ranklake sq": "sql",
    "ranklake show op": "open-1",
    "ranklake show --role guest ": "open-2",
    "ranklake catalog gpu_s": "gpu_samples",
    "ranklake replay --table step_": "step_rollup",
    "ranklake sql --role gu": "guest",
}


@pytest.mark.slow
def test_the_shell_of_the_system_completes_names(place):
    """`ranklake completion bash` gives a script that bash takes, and what it calls offers names, by role."""
    command = [sys.executable, "-m", "ranklake"]
    script = subprocess.run([*command, "completion", "bash"], capture_output=True, text=True, check=True).stdout
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert "_RANKLAKE_COMPLETE=bash_complete" in script

    def completed(typed, lake):
        more = {"_RANKLAKE_COMPLETE": "bash_complete", "RANKLAKE_LAKE": str(lake)}
        more |= {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
        done = subprocess.run(
            command, env=os.environ | more, cwd=place, capture_output=True, text=True, timeout=100, check=False
        )
        assert not done.stderr
        return done.stdout.replace("plain,", "").split()

    for typed, wanted in COMPLETED.items():
        found = completed(typed, place / "lake")
        assert wanted in found, typed
        assert "secret-3" not in found
    assert completed("ranklake show ", place / "nowhere") == []
