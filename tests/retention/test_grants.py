"""Grants: a role is had until a time, by another person's word; used otherwise, it is refused in one line."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from rollup_inputs import NOON, append
from ssh_keys import Keys, needs_ssh_keygen

from ranklake.cli import run
from ranklake.config import Config
from ranklake.doctor.books import grants as probe
from ranklake.lake.audit import clock
from ranklake.lake.audit.trail import record, trail
from ranklake.lake.contracts.load import contract
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.grants.grant import GRANTED, GRANTS, REQUEST, REVIEW, GrantError, register, request
from ranklake.retention.grants.use import (
    NotGrantedError,
    accesses,
    approve,
    ask,
    current_grant,
    end_reason,
    review,
    revoke,
)
from ranklake.retention.proposals.examination import examine
from ranklake.retention.proposals.lifecycle import propose

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def now(monkeypatch):
    """Give the time by which grants go, to be set."""
    moment = [START]
    monkeypatch.setattr(clock, "now", lambda: moment[0])
    return moment


@pytest.fixture
def lake(tmp_path):
    """Give a lake with steps."""
    made = Lake.create(str(tmp_path / "lake"))
    append(made, "steps", [{"run": "r1", "step": 1, "ts": NOON, "step_time_s": 1.0}])
    return made


def asked(lake, days=30, **more):
    """Ask for a role for Eve."""
    return ask(lake, "reader", "eve", clock.now() + timedelta(days=days), "loss study", "ada", **more)


def test_a_grant_holds_from_its_approval_to_its_end(lake, now):
    """Nobody uses a role before it is approved, nor after its end, nor without a grant; each time in one line."""
    with pytest.raises(NotGrantedError, match="eve has no grant of role reader"):
        current_grant(lake, "reader", "eve")
    made = asked(lake)
    with pytest.raises(NotGrantedError, match=f"nobody approved it; .* ranklake grants approve {made.name}"):
        current_grant(lake, "reader", "eve")
    found, fresh = approve(lake, made.name, "bob", "it is for the study")
    assert fresh
    assert found.approved is not None
    assert not approve(lake, made.name, "bob")[1]
    assert current_grant(lake, "reader", " EVE ").name == made.name
    assert end_reason(lake, "reader") == ""
    for role, who in (("reader", "mallory"), ("writer", "eve")):
        with pytest.raises(NotGrantedError, match="has no grant"):
            current_grant(lake, role, who)
    now[0] += timedelta(days=30)
    with pytest.raises(NotGrantedError, match="it ended at 2026-03-31 12:00 UTC") as caught:
        current_grant(lake, "reader", "eve")
    assert "\n" not in str(caught.value)
    assert end_reason(lake, "reader") == "no grant of role reader is in force"
    assert end_reason(lake, "writer") == "role writer is granted to nobody"
    assert not examine(lake).faults


def test_nobody_approves_for_himself(lake, now):
    """Neither who asks nor who gets the role may approve, however the name is spelt; one alone says so."""
    made = asked(lake)
    for who in ("eve", "E ve", "ada"):
        with pytest.raises(Exception, match="may not approve"):
            approve(lake, made.name, who)
    assert register(lake)[made.name].approved is None
    assert approve(lake, made.name, "ada", single_operator=True)[0].approved is not None


def test_a_grant_can_be_revoked(lake, now):
    """Revoked it holds no more, and nobody can approve it again; another can be asked for."""
    made = asked(lake)
    approve(lake, made.name, "bob")
    assert revoke(lake, made.name, "carl", "left the team")[1]
    assert not revoke(lake, made.name, "carl", "left the team")[1]
    with pytest.raises(NotGrantedError, match="it was revoked at 2026-03-01"):
        current_grant(lake, "reader", "eve")
    with pytest.raises(GrantError, match="nothing to approve"):
        approve(lake, made.name, "bob")
    again = asked(lake)
    assert again.name != made.name
    approve(lake, again.name, "bob")
    assert current_grant(lake, "reader", "eve").name == again.name


def test_break_glass_holds_at_once_and_waits_for_a_review(lake, now):
    """It is had for some hours without approval; access reviews name it until another person has looked at it."""
    with pytest.raises(GrantError, match="4 hours at most"):
        asked(lake, days=1, break_glass=True)
    made = ask(lake, "reader", "eve", START + timedelta(hours=3), "the cluster is down", "eve", break_glass=True)
    assert current_grant(lake, "reader", "eve").awaits_review()
    now[0] += timedelta(hours=3)
    with pytest.raises(NotGrantedError, match="it ended"):
        current_grant(lake, "reader", "eve")
    (one,) = accesses(lake)
    assert one.remarks == ("taken without approval, and nobody reviewed it",)
    with pytest.raises(GrantError, match="may not review"):
        review(lake, made.name, "eve", "fine")
    with pytest.raises(GrantError, match="says what was found"):
        review(lake, made.name, "bob", " ")
    assert review(lake, made.name, "bob", "two queries, both on steps")[1]
    assert not accesses(lake)
    ordinary = asked(lake)
    with pytest.raises(GrantError, match="needs no review"):
        review(lake, ordinary.name, "bob", "x")


@pytest.mark.slow
def test_break_glass_has_an_end(lake, now):
    """Who took a role says --again while nobody looked at that, each is told, and after a day there is no other."""

    def take(to="eve", **more):
        return ask(lake, "reader", to, clock.now() + timedelta(hours=4), "down", to, break_glass=True, **more).name

    names = [take()]
    with pytest.raises(GrantError, match=f"{names[0]} was taken .* grants review {names[0]} .*--again"):
        take(" E ve")
    take("mallory")  # another person's waits for nobody else's review
    for hours in (4, 8, 12, 16, 20):
        now[0] = START + timedelta(hours=hours)
        names.append(take(again=True))
    remarks = {one.grant.name: one.remarks[1:] for one in accesses(lake) if one.grant.to == "eve"}
    assert [remarks[name] for name in names] == [
        (), *((f"taken again, with {n} of the same person before it not reviewed",) for n in range(1, 6)),
    ]  # fmt: skip
    details = [json.loads(row["details"]) for row in trail(lake.tables) if "before" in row["details"]]
    assert [one["not_reviewed_before"] for one in details] == [1, 2, 3, 4, 5]
    now[0] = START + timedelta(hours=24)
    with pytest.raises(GrantError, match=f"{names[0]} was taken without approval over 24 hours ago"):
        take(again=True)
    for name in names:
        review(lake, name, "bob", "seen")
    take()


def test_what_cannot_be_granted_is_one_line(lake, now):
    """A grant has somebody, a reason, and an end to come."""
    later = START + timedelta(days=1)
    for to, until, reason, message in (
        ("", later, "x", "nobody gets the role"),
        ("a#b", later, "x", "without #"),
        ("eve", later, " ", "needs a reason"),
        ("eve", START, "x", "is past"),
    ):
        with pytest.raises(GrantError, match=message):
            request(lake, "reader", to, until, reason, "ada")
    assert not register(lake)


def test_forged_rows_give_nobody_a_role(lake, now):
    """A row that says a grant was approved counts only with an approval; a request that was altered is none."""
    made = asked(lake)
    record(lake, "mallory", GRANTED, made.name)
    with pytest.raises(NotGrantedError, match="the audit log has no approval of it"):
        current_grant(lake, "reader", "eve")
    said = {"grant": made.name, "role": "admin", "until": made.until.isoformat(), "break_glass": True}
    record(lake, "mallory", REQUEST, "mallory#00", None, {**said, "grant": "grant-000000000000"})
    with pytest.raises(NotGrantedError, match="it was altered"):
        current_grant(lake, "admin", "mallory")


def test_names_stand_in_no_log_and_no_detail(lake, now):
    """Who gets a role is in the column `subject` alone: not in details, statistics, commits or file names."""
    ask(lake, "reader", "zebediah", START + timedelta(days=1), "for zebediah", "ada")
    approve(lake, next(iter(register(lake))), "bob")
    rows = trail(lake.tables)
    assert [row["subject"] for row in rows if "zebediah" in row["subject"]]
    assert not [row for row in rows if "zebediah" in (row["details"] or "")]
    folder = lake.path("tables", "audit", "_delta_log")
    assert b"zebediah" not in b"".join(lake.fs.cat_file(path) for path in lake.fs.ls(folder, detail=False))
    assert files(delta_table(lake.store, "audit")).num_rows
    assert {column.name: column.class_ for column in contract("audit").columns}["subject"] == "pseudonymous"


@pytest.fixture
def command(lake, tmp_path, monkeypatch, capsys):
    """Run a command beside a configuration that asks for grants; give its code, output and errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roles.yaml").write_text("roles: {reader: {classes: [operational], tables: [steps]}}")
    said = f'[lake]\nuri = "{lake.uri}"\n[sql]\nroles = "roles.yaml"\ngrants = true\n'
    (tmp_path / "ranklake.toml").write_text(f'{said}[shares]\nto = "out"\nroles = ["reader"]\n')
    monkeypatch.setattr("getpass.getuser", lambda: "eve")

    def call(*arguments):
        code = run(list(arguments))
        return code, *capsys.readouterr()

    return call


def test_roles_are_used_and_shared_under_grants(lake, command, tmp_path):
    """`ranklake sql --role` and shares go by grants where they are asked for; a share goes when the last grant does."""
    asking = ("sql", "SELECT count(*) AS n FROM steps", "--role", "reader", "--format", "csv")
    code, out, err = command(*asking)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "eve has no grant of role reader" in err
    assert "granted to nobody" in command("share", "reader")[2]
    assert "did you mean 'reader'" in command("grant", "raeder", "--to", "eve", "--until", "1d", "--reason", "x")[2]
    assert "is no time" in command("grant", "reader", "--to", "eve", "--until", "soon", "--reason", "x")[2]
    wanted = ("grant", "reader", "--to", "eve", "--until", "30d", "--reason", "study", "--by", "ada", "--json")
    name = json.loads(command(*wanted)[1])["grant"]
    assert "nobody approved it" in command(*asking)[2]
    assert "nobody approved it" in command("grants", "list")[1]
    assert "eve has role reader until" in command("grants", "approve", name, "--by", "bob")[1]
    assert command(*asking)[1].split() == ["n", "1"]
    assert json.loads(command("share", "--all", "--json")[1])["refreshed"][0]["changed"]
    code, out, _ = command("grants", "review", "--json")
    (told,) = json.loads(out)
    assert (code, told["grant"], told["queries"], told["remarks"]) == (0, name, 1, [])
    assert "revoked" in command("revoke", name, "--reason", "over", "--by", "carl")[1]
    assert "it was revoked" in command(*asking)[2]
    dropped = json.loads(command("share", "--all", "--json")[1])["dropped"]
    assert [one["why"] for one in dropped] == ["no grant of role reader is in force"]
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_a_look_shows_what_ended_of_late(command, lake, now):
    """A grant that ended or was revoked is listed with its end for thirty days; then its number is told."""
    for days in (1, 40):
        approve(lake, asked(lake, days=days).name, "bob")
    revoked = asked(lake, days=90).name
    revoke(lake, revoked, "carl", "left the team")
    now[0] += timedelta(days=2)
    _, out, _ = command("grants", "list")
    assert [line.split("  ")[-1].strip() for line in out.splitlines()[1:]] == [
        "holds", "it ended at 2026-03-02 12:00 UTC", "it was revoked at 2026-03-01 12:00 UTC",
    ]  # fmt: skip
    now[0] += timedelta(days=30)
    assert command("grants", "list")[1].splitlines()[-1] == "2 grants that ended before are not shown; --all shows them"
    assert len(json.loads(command("grants", "list", "--json")[1])) == 1
    assert "it was revoked" in command("grants", "list", "--all")[1]
    now[0] += timedelta(days=60)
    assert command("grants", "list")[1].startswith("3 grants")


def test_break_glass_is_told_wherever_it_is_used(command, lake):
    """A query under such a grant says so; the review exits 1 until somebody has reviewed it."""
    wanted = ("grant", "reader", "--to", "eve", "--until", "2h", "--reason", "outage", "--break-glass", "--json")
    name = json.loads(command(*wanted)[1])["grant"]
    code, _, err = command("sql", "SELECT count(*) FROM steps", "--role", "reader")
    assert code == 0
    assert f"without approval, under {name}" in err
    assert command(*wanted)[2].endswith("if nobody is there, say --again\n")
    assert "say --break-glass, too" in command(*wanted[:-2], "--again")[2]
    again = json.loads(command(*wanted, "--again")[1])["grant"]
    told = list(probe(SimpleNamespace(config=Config().replaced({"lake.uri": lake.uri}))))
    assert [(one.state, one.what.rpartition(": ")[2]) for one in told] == [("warning", name), ("failed", again)]
    assert command("grants", "review", again, "--by", "bob", "--reason", "seen")[0] == 0
    assert command("grants", "review")[0] == 1
    assert command("grants", "review", name, "--by", "bob", "--reason", "seen")[0] == 0
    assert command("grants", "review")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["runs", "show r1", "compare r1 r1", "plot r1 x", "trace r1 --step 1", "media r1", "report runs"]
)
def test_a_review_knows_of_every_use(command, lake, words):
    """Whatever is asked as a role is a use of it, whether the role sees enough for an answer or not."""
    name = asked(lake).name
    approve(lake, name, "bob")
    command(*words.split(), "--role", "reader")
    (found,) = accesses(lake)
    assert (found.grant.name, found.queries) == (name, 1)


def test_a_shell_that_stays_open_outlives_no_grant(command, lake, monkeypatch):
    """Each statement asks for the grant anew: one that ended or was revoked meanwhile holds no more."""
    name = asked(lake).name
    approve(lake, name, "bob")
    monkeypatch.setattr("ranklake.commands.sql._texts", lambda *_: None)

    def interact(*given):
        answer = given[-1]
        assert answer("SELECT count(*) AS n FROM steps").num_rows == 1
        revoke(lake, name, "carl", "left the team")
        with pytest.raises(NotGrantedError, match="it was revoked"):
            answer("SELECT count(*) AS n FROM steps")

    monkeypatch.setattr("ranklake.shell.terminal.interact", interact)
    code, _, err = command("sql", "--role", "reader")
    assert (code, err) == (0, "")


@needs_ssh_keygen
@pytest.mark.slow
def test_the_commands_of_grants_take_keys(command, tmp_path):
    """Where approvals are signed: asking, approving and reviewing by key; revoking and sharing need none."""
    keys = Keys(tmp_path / "keys")
    keys.allow("pia", "ada")
    with (tmp_path / "ranklake.toml").open("a") as file:
        file.write(f'[approvals]\nallowed_signers = "{keys.file}"\n')
    by = {name: ("--key", str(keys.path(name))) for name in ("pia", "ada")}
    wanted = ("grant", "reader", "--to", "eve", "--until", "2h", "--reason", "study", "--json", *by["pia"])
    asked = command("grant", "reader", "--to", "eve", "--until", "2h", "--reason", "study")[2]
    assert asked.endswith("grant reader --to eve --until TIME --reason TEXT --key ~/.ssh/id_ed25519\n")
    name = json.loads(command(*wanted)[1])["grant"]
    assert f"grants approve {name} --key KEY" in command("sql", "SELECT 1", "--role", "reader")[2]
    assert command("grants", "approve", name, *by["ada"])[0] == 0
    assert command("share", "reader")[0] == 0
    assert command("revoke", name, "--reason", "over", "--by", "ada")[0] == 0
    rows = [line.strip().split("  ") for line in command("audit", "show")[1].splitlines()]
    trail = {row[3]: row[2] for row in rows}
    assert trail["grant.revoke"] == "ada (not signed)"
    assert trail["share.create"].endswith(" (not signed)")
    assert "not signed" not in trail["grant.approve"]
    taken = json.loads(command(*wanted, "--break-glass")[1])["grant"]
    assert "takes signatures only" in command("grants", "review", taken, "--reason", "seen")[2]
    assert command("grants", "review", taken, "--reason", "seen", *by["ada"])[1] == f"{taken}: reviewed\n"


@needs_ssh_keygen
@pytest.mark.slow
def test_a_lake_with_signatures_asks_for_them(tmp_path):
    """Where approvals are signed, a grant holds by the signature of another person; neither a row nor a name is one."""
    keys = Keys(tmp_path / "keys")
    keys.allow("pia", "ada", "eve")
    lake = Lake.create(str(tmp_path / "lake")).configured(approvals=keys.section())
    until = clock.now() + timedelta(hours=2)
    made = request(lake, "reader", "eve@example.org", until, "study", "pia@example.org")
    record(lake, "ada@example.org", GRANTED, made.name)
    with pytest.raises(NotGrantedError, match=r"has no approval|nobody signed"):
        current_grant(lake, "reader", "eve@example.org")
    other = request(lake, "reader", "eve@example.org", until, "study", "pia@example.org")
    pia, ada, eve = (keys.by(name) for name in ("pia", "ada", "eve"))
    propose(lake, GRANTS, other.name, **pia)
    with pytest.raises(GrantError, match="may not approve"):
        approve(lake, other.name, **eve)
    approve(lake, other.name, **ada)
    assert current_grant(lake, "reader", "eve@example.org").name == other.name
    taken = request(lake, "writer", "eve@example.org", until, "outage", "eve@example.org", break_glass=True)
    with pytest.raises(NotGrantedError, match="nobody signed that they take it"):
        current_grant(lake, "writer", "eve@example.org")
    propose(lake, GRANTS, taken.name, **eve)
    assert current_grant(lake, "writer", "eve@example.org").awaits_review()
    assert review(lake, taken.name, reason="two queries", **ada)[0].reviewed is not None
    (reviewed,) = (row for row in trail(lake.tables) if row["action"] == REVIEW)
    assert (reviewed["actor"], "SSH SIGNATURE" in reviewed["details"]) == ("ada@example.org", True)
    assert not [fault for fault in examine(lake).faults if other.name in fault or taken.name in fault]
