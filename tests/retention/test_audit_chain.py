"""The chain, table-wise: the same digests as row by row, every kind of tampering found, and verified from a row on."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from governed import Site
from hypothesis import given, settings
from hypothesis import strategies as st

from ranklake.cli import run
from ranklake.lake.audit import chain
from ranklake.lake.audit.chain import GENESIS, Chain, Head, digest, digests, follow_table
from ranklake.lake.audit.proof import first_row_of, prove
from ranklake.lake.audit.trail import Entry, record, record_all, trail
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake_config import AuditSection
from ranklake.views.audit_lines import as_cef, as_json

SCHEMA = arrow_schema(contract("audit"))
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
COUNT = 9
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def linked(facts):
    """Return rows that are a whole chain, made of some facts."""
    before, rows = GENESIS, []
    for number, one in enumerate(facts):
        row = {"seq": number, "prev_sha256": before, **one}
        rows.append(row | {"sha256": digest(row)})
        before = rows[-1]["sha256"]
    return rows


def follow(rows):
    """Follow a chain from its first row; rows in the order of their numbers."""
    head = Head()
    lost = []
    for row in rows:
        number, before = row["seq"], head.sha256
        if number > head.rows and chain._resumes(row, head):
            lost.append((head.rows, number - 1))
            before = row["prev_sha256"]
        elif number != head.rows:
            return Chain(head, head.rows, tuple(lost))
        if row["prev_sha256"] != before or row["sha256"] != digest(row):
            return Chain(head, number, tuple(lost))
        head = Head(number + 1, row["sha256"])
    return Chain(head, None, tuple(lost))


def table_of(rows):
    """Return rows as the audit log's table has them."""
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def chain_of(count=COUNT):
    """Return a whole chain."""
    return linked(
        {
            "ts": START + timedelta(seconds=number),
            "date": START.date(),
            "actor": f"actor {number}",
            "action": "test.act",
            "subject": f"thing {number}",
            "reason": None if number % 2 else "because",
            "details": json.dumps({"n": number}),
        }
        for number in range(count)
    )


@settings(max_examples=60, deadline=None)
@given(
    facts=st.lists(
        st.tuples(text, text, st.none() | text, st.none() | text, st.integers(-(10**15), 10**16)),
        max_size=4,
    )
)
def test_digests_of_a_table_are_those_of_its_rows(facts):
    """Whatever the texts and times: a trail written before, row by row, verifies."""
    rows = linked(
        {
            "ts": START + timedelta(microseconds=after_us),
            "date": START.date(),
            "actor": actor,
            "action": action,
            "subject": actor,
            "reason": reason,
            "details": details,
        }
        for actor, action, reason, details, after_us in facts
    )
    assert list(digests(table_of(rows))) == [row["sha256"] for row in rows]
    assert follow_table(table_of(rows)) == follow(rows)
    assert follow_table(table_of(rows)).broken is None


def _altered(column, place):
    def change(rows):
        old = rows[place][column]
        new = {
            "seq": lambda: old + 100,
            "ts": lambda: old - timedelta(microseconds=1),
            "date": lambda: old - timedelta(days=1),
        }.get(column, lambda: "f" * 64 if column.endswith("sha256") else f"{old}x")()
        return [row | {column: new} if number == place else row for number, row in enumerate(rows)]

    return change


def _forged(column, place):
    """Alter a value and make the row's own digest right."""

    def change(rows):
        rows = _altered(column, place)(rows)
        row = {name: value for name, value in rows[place].items() if name != "sha256"}
        return [*rows[:place], row | {"sha256": digest(row)}, *rows[place + 1 :]]

    return change


COLUMNS = [name for name in SCHEMA.names if name != "sha256"]
PLACES = (0, 4, COUNT - 1)
TAMPERINGS = {
    **{f"alter {column} of {place}": _altered(column, place) for column in SCHEMA.names for place in PLACES},
    **{f"forge {column} of {place}": _forged(column, place) for column in COLUMNS for place in PLACES},
    **{f"drop {place}": (lambda rows, place=place: rows[:place] + rows[place + 1 :]) for place in PLACES},
    **{f"repeat {place}": (lambda rows, place=place: rows[: place + 1] + rows[place:]) for place in PLACES},
    **{f"swap {p}": (lambda rows, p=p: [*rows[:p], rows[p + 1], rows[p], *rows[p + 2 :]]) for p in (0, 4, COUNT - 2)},
    **{f"cut at {place}": (lambda rows, place=place: rows[:place]) for place in PLACES},
    **{f"put {p} at the end": (lambda rows, p=p: [*rows, rows[p]]) for p in PLACES},
    "reversed": lambda rows: rows[::-1],
    "another chain": lambda _: chain_of(COUNT - 1),
    "nothing": lambda _: [],
    "append a row of its own": lambda rows: [*rows, rows[-1] | {"seq": COUNT, "prev_sha256": GENESIS}],
}
"""What is done to a chain, and afterwards held against the head that tells of its end."""


def test_there_are_eighty_kinds_of_tampering():
    """As many as the table is meant to hold."""
    assert len(TAMPERINGS) >= 75


@pytest.mark.parametrize("what", TAMPERINGS)
def test_every_tampering_is_found(what):
    """By the chain, or by the head that was written down; table-wise as row by row."""
    rows = chain_of()
    end = Head(COUNT, rows[-1]["sha256"])
    tampered = TAMPERINGS[what](rows)
    found = follow_table(table_of(tampered))
    assert found == follow(tampered)
    assert found.broken is not None or found.head != end


@pytest.mark.parametrize("witnessed", [False, True])
def test_rows_from_a_number_on_are_verified(tmp_path, witnessed):
    """From the last head before them, of the witness where there is one: what is altered since is found."""
    site = Site(tmp_path)
    if witnessed:
        site.lake = site.lake.configured(audit=AuditSection(f"file:{tmp_path}/witness"))
    for number in range(6):
        record(site.lake, "ada", "test.act", f"thing {number}")
    found = prove(site.lake, 4)
    assert (found.whole, found.since, found.rows) == (True, 4, 2)
    assert (prove(site.lake).since, prove(site.lake).rows) == (0, 6)
    assert first_row_of(site.lake.tables, trail(site.lake.tables)[0]["date"]) == 0
    assert first_row_of(site.lake.tables, datetime.now(UTC).date() + timedelta(days=2)) == 6
    heads = sorted((tmp_path / ("witness" if witnessed else "lake/audit/heads")).rglob("*.json"))
    facts = json.loads(heads[3].read_text())
    heads[3].write_text(json.dumps(facts | {"sha256": "0" * 64}))
    assert (prove(site.lake, 4).broken, prove(site.lake).broken) == (4, None)


def test_many_heads_apart(tmp_path):
    """Batches leave one head each; a row between two is verified from the one before it."""
    site = Site(tmp_path)
    for _ in range(3):
        record_all(site.lake, [Entry("ada", "test.act", f"thing {number}") for number in range(150)])
    assert [(prove(site.lake, row).since, prove(site.lake, row).rows) for row in (149, 150, 299, 300, 449, 450)] == [
        (0, 450), (150, 300), (150, 300), (300, 150), (300, 150), (450, 0),
    ]  # fmt: skip


def test_an_export_is_verified_by_itself(tmp_path, capfd, monkeypatch):
    """Without a lake: an altered, repeated or missing row shows; what a filter left out is told."""
    monkeypatch.chdir(tmp_path)
    rows = linked(
        {
            "ts": START,
            "date": START.date(),
            "actor": "zoë",
            "action": f"a.{place % 2}",
            "subject": "x\n",
            "reason": None,
        }
        | {"details": details}
        for place, details in enumerate((None, '{"n": 1.5, "s": "\\u00e9"}', "{odd", '{"b":1}', "[]", "{}"))
    )
    lines = [as_json(row) for row in rows]

    def verify(*some):
        (tmp_path / "trail.jsonl").write_text("\n".join([*some, ""]))
        code = run(["audit", "verify-export", "trail.jsonl"])
        return code, "".join(capfd.readouterr())

    assert verify(*lines) == (
        0, f"rows 0 to 5 are as they were written: 6 rows\ndigest of the last: {rows[-1]['sha256']}\n",
    )  # fmt: skip
    assert verify(*reversed(lines))[0] == 0
    assert "row 2 of the export is altered" in verify(*lines[:2], lines[2].replace("odd", "0dd"), *lines[3:])[1]
    for column in ("actor", "action", "subject", "details", "prev_sha256", "sha256", "ts", "seq"):
        altered = json.loads(lines[3]) | {column: {"seq": 9, "ts": "2026-03-02T00:00:00+00:00"}.get(column, "other")}
        assert verify(*lines[:3], json.dumps(altered), *lines[4:])[0] == 1
    assert verify(*lines, lines[2])[0] == 1
    assert "2 rows before or between them are not in the export" in verify(lines[0], lines[2], *lines[4:])[1]
    again = linked({name: row[name] for name in row if "sha" not in name and name != "seq"} for row in rows[1:])
    assert verify(lines[0], *(as_json(row) for row in again[1:]))[0] == 1
    for odd in ("{}", "x", "[" * 9999, '{"seq": 1}', lines[0].replace("zoë", "z").replace('"seq": 0', '"seq": null')):
        assert verify(odd) == (2, verify(odd)[1])
        assert "line 1 is no row of an audit log" in verify(odd)[1]
    assert verify() == (0, "the export has no rows\n")


def test_rows_are_exported(tmp_path, capfd):
    """As JSON lines and CEF, from a row or a date on, of some actions; what is no date is told."""
    site = Site(tmp_path)
    record(site.lake, "ada|x", "test.act", "thing=1", "two\nlines \\", {"rows": 3})
    record(site.lake, "otto", "other.act", "thing")
    lake = ["--lake", site.lake.uri]
    assert run(["audit", "export", *lake]) == 0
    first, second = map(json.loads, capfd.readouterr().out.splitlines())
    assert (first["actor"], first["details"], second["seq"]) == ("ada|x", {"rows": 3}, 1)
    assert run(["audit", "export", "--format", "cef", "--action", "test", *lake]) == 0
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith("CEF:0|ranklake|ranklake|")
    assert r"suser=ada|x act=test.act duid=thing\=1 externalId=0 reason=two\nlines \\ cs1Label=sha256" in line
    assert run(["audit", "list", "--since", "1", "--action", "other", *lake]) == 0
    assert capfd.readouterr().out.split()[3:5] == ["otto", "other.act"]
    assert run(["audit", "verify", "--since", "1", "--json", *lake]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["since"], found["rows"], found["approvals"]) == (1, 3, None)
    assert run(["audit", "verify", "--since", "1999-13-01", *lake]) == 2
    assert "neither a date such as 2026-12-31 nor a row" in capfd.readouterr().err
    (row, _, first, second) = trail(site.lake.tables)
    assert [json.loads(one["details"]) for one in (first, second)] == [
        {"rows": 2, "first": 0, "last": 1, "format": "json", "role": None},
        {"rows": 1, "first": 0, "last": 0, "format": "cef", "role": None},
    ]
    assert json.loads(as_json(row))["sha256"] == row["sha256"]
    for forged in ("{forged", '{"b":1, "a":2}', '"x"', "[1]"):
        assert json.loads(as_json(row | {"details": forged}))["details"] == forged
    assert as_cef(row | {"action": "a|b"}).split("|")[4] == "a\\"


def test_rows_forge_no_lines(tmp_path, capfd):
    """Whatever a name holds, what is shown and exported has a line a row, and nothing that a terminal obeys."""
    site = Site(tmp_path)
    record(site.lake, "ada", "test.act", "eve\n    7  2026-01-01 00:00:00  bob\x1b[2K\u2028\x85\r\x0bx", "why\x1b[A")
    lake = ["--lake", site.lake.uri]
    for words in (["show"], ["export"], ["export", "--format", "cef", "--action", "test"]):
        assert run(["audit", *words, *lake]) == 0
        out = capfd.readouterr().out
        assert len(out.splitlines()) == 1
        assert out.isprintable() or out.removesuffix("\n").isprintable()


@pytest.mark.parametrize("command", ["show", "export", "verify"])
@pytest.mark.parametrize("since", ["9" * 30, "9" * 19, "-1", "1e3", "0001-01-00"])
def test_what_is_no_row_is_told(tmp_path, capfd, command, since):
    """One line, whatever number it is."""
    site = Site(tmp_path)
    record(site.lake, "ada", "test.act", "thing")
    assert run(["audit", command, "--since", since, "--lake", site.lake.uri]) == 2
    assert capfd.readouterr().err.count("\n") == 1


ROLES = """
roles:
  auditor: {classes: [operational], masked: [pseudonymous, personal], tables: [audit]}
  numbers: {classes: [operational], tables: [audit]}
  scientist: {classes: [operational], tables: [steps]}
  some: {classes: [operational, pseudonymous], tables: [audit], where: {audit: "action = 'test.act'"}}
"""


def test_a_role_exports_what_it_sees(tmp_path, capfd, monkeypatch):
    """Names by pseudonyms, no row that it does not see, nothing at all where the log is not for it; that is noted."""
    site = Site(tmp_path)
    record(site.lake, "ada", "test.act", "thing", "call bob@example.org", {"rows": 3})
    record(site.lake, "otto", "other.act", "thing")
    (tmp_path / "roles.yaml").write_text(ROLES)
    (tmp_path / "keys").write_text("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
    said = f'[lake]\nuri = "{site.lake.uri}"\n[sql]\nroles = "roles.yaml"\n[masking]\nkey = "file:keys"\n'
    (tmp_path / "ranklake.toml").write_text(said)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("getpass.getuser", lambda: "eve")

    def export(role, *more):
        code = run(["audit", "export", "--role", role, *more])
        out, err = capfd.readouterr()
        return code, [json.loads(line) for line in out.splitlines()], err

    code, rows, _ = export("auditor", "--since", "0")
    assert (code, [row["seq"] for row in rows], rows[0]["details"]) == (0, [0, 1], {"rows": 3})
    assert rows[0]["actor"] not in {"ada", None}
    assert "bob" not in rows[0]["reason"]
    _, rows, _ = export("numbers", "--action", "test")
    assert [(row["seq"], row["actor"], row["reason"]) for row in rows] == [(0, None, None)]
    _, rows, _ = export("some", "--since", "2000-01-01")
    assert [(row["seq"], row["actor"]) for row in rows] == [(0, "ada")]
    for role in ("scientist", "nobody"):
        code, rows, err = export(role)
        assert (code, rows, err.count("\n")) == (2, [], 1)
    assert run(["audit", "show", "--role", "numbers", "--action", "other"]) == 0
    assert capfd.readouterr().out.split()[3:] == ["-", "other.act", "-"]
    assert [(row["actor"], json.loads(row["details"])["role"]) for row in trail(site.lake.tables)[2:]] == [
        ("eve", "auditor"), ("eve", "numbers"), ("eve", "some"),
    ]  # fmt: skip
    assert run(["audit", "export", "--role", "auditor", "--format", "cef"]) == 0
    assert "suser=" in capfd.readouterr().out


def test_a_broken_trail_is_exported_and_says_that_nobody_noted_it(tmp_path, capfd):
    """What is left is evidence: it is printed, and one line says that the audit log does not know."""
    site = Site(tmp_path)
    for number in range(3):
        record(site.lake, "ada", "test.act", f"thing {number}")
    max((tmp_path / "lake/tables/audit/_delta_log").glob("*.json")).unlink()
    assert run(["audit", "export", "--lake", site.lake.uri]) == 0
    out, err = capfd.readouterr()
    assert (len(out.splitlines()), err.count("\n")) == (2, 1)
    assert "the audit log does not say that it was exported" in err
