"""Who looks at `ranklake ui` beyond this machine: each by an address of their own, as one role, until its end."""

import random
import re
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from urllib.parse import urlencode

import pytest
import yaml
from hidden_run import PLANTED, TABLES, lake_with_a_hidden_run
from recorded_runs import RUNS
from ui_client import addresses, asking, context_of, ui_server

from ranklake.cli import run
from ranklake.commands.ui import _role
from ranklake.lake.audit import clock
from ranklake.lake.store.lake import Lake
from ranklake.retention.shares.server.links import PROFILE, VIEW, seal_token, view_purpose
from ranklake.segments.envelope import Key
from ranklake.segments.keys import Keyring
from ranklake.ui import app as app_module
from ranklake.ui import pages as pages_module
from ranklake.ui import viewers as viewers_module
from ranklake.ui.ask import ASK_HOME, ASK_ROWS
from ranklake.ui.viewers import NamedRoles, TokenViewers
from ranklake.views.html import run_pages

pytestmark = pytest.mark.leaky("a client keeps its event loop")
KEYS = Keyring((Key(bytes(range(32))),))
COOKIE = TokenViewers(KEYS, None, VIEW).cookie
SECURE = "https://127.0.0.1"
STATEMENTS = (*(f"SELECT * FROM {table}" for table in TABLES), "SHOW TABLES", "SELECT CAST(run AS int) FROM runs")
LIVE = ("live/", "live/index.html", "events", "events?run=beta")


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of four runs."""
    return lake_with_a_hidden_run(tmp_path_factory.mktemp("viewed"))


def token(role, to="eve", purpose=VIEW, keys=KEYS, hours=1.0):
    """Return a token."""
    until = (clock.now() + timedelta(hours=hours)).isoformat()
    return seal_token(keys, purpose, {"role": role, "to": to, "until": until})


def as_role(role, **given):
    """Return the headers of who looks as a role."""
    return {"headers": {"Cookie": f"{COOKIE}={token(role, **given)}"}}


def written(folder, roles):
    """Write a file of roles; return its path, and what returns a role of it by name."""
    path = folder / "roles.yaml"
    path.write_text(yaml.safe_dump({"roles": roles}))
    return path


def viewers_of(lake, path, refusal=lambda _role, _who: "", note=lambda _role, _who: None, purpose=VIEW):
    """Return the viewers of a file of roles."""
    context = context_of(lake, **{"sql.roles": str(path)})
    return TokenViewers(KEYS, NamedRoles(refusal, partial(_role, context), note), purpose)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_role_finds_what_it_does_not_see_at_any_address(lake, tmp_path, seed):
    """Random roles on one server, all at once and in any order: what one made is shown to no other."""
    chance = random.Random(seed)
    hidden_of = {}
    for number in range(4):
        seen = chance.sample(sorted(RUNS), chance.randint(0, 3))
        hidden_of[f"role{number}"] = set(RUNS) - set(seen)
    roles = {
        name: {
            "classes": ["operational"],
            "tables": TABLES if number % 2 else [*chance.sample(TABLES, len(TABLES) - 6), "run_summary"],
            "runs": f"run NOT IN ({', '.join(repr(one) for one in sorted(hidden))})",
        }
        for number, (name, hidden) in enumerate(hidden_of.items())
    }
    path = written(tmp_path, {name: {**role, "tables": sorted(set(role["tables"]))} for name, role in roles.items()})
    with asking(lake) as client:
        every = sorted(
            {
                *addresses(client),
                *LIVE,
                "explore/points.json?run=beta&metric=*",
                "explore/points.csv",
                "explore/media.html?run=beta",
                "annotate/index.html?run=beta",
                "ask/index.html?sql=SELECT+1",
                "ask/words.json?before=SELECT+*+FROM+steps+WHERE+run+%3D+'",
                *(f"{ASK_ROWS}?{urlencode({'sql': sql, 'form': 'csv'})}" for sql in chance.sample(STATEMENTS, 12)),
            }
        )
    context = context_of(lake, **{"sql.roles": str(path)})
    with asking(lake, viewers=viewers_of(lake, path), context=context, url=SECURE) as client:
        asked = [(role, address) for role in roles for address in every]
        chance.shuffle(asked)
        with ThreadPoolExecutor(8) as many:
            answers = list(many.map(lambda one: look(client, *one), asked))
    shown = 0
    for (role, address), answer in zip(asked, answers, strict=True):
        text = f"{answer.headers} {answer.text}".lower()
        secrets = {*hidden_of[role], *PLANTED[2:]} - {"canary"}
        secrets |= {"canary"} if "beta" in hidden_of[role] else set()
        shown += answer.status_code == 200
        assert not [word for word in secrets - {"evil"} if word in _without(text, address)], (role, address)
        assert answer.status_code in {200, 400, 404}, (role, address, text)  # 400: one run is nothing to compare
        if address in LIVE:
            assert answer.status_code == 404
    assert shown > len(every)


def look(client, role, address):
    """Return the answer to who looks as a role; a statement is sent by the form of their page."""
    asker = as_role(role)
    path, _, query = address.partition("?")
    if path != ASK_ROWS:
        return client.get(f"/{address}", **asker)
    page = client.get(f"/{ASK_HOME}", **asker).text
    token = re.search('data-token="([0-9a-f]+)"', page)[1]
    headers = {**asker["headers"], "Content-Type": "application/x-www-form-urlencoded", "Origin": SECURE}
    return client.post(f"/{path}", content=f"{query}&token={token}", headers=headers)


def _without(text, address):
    """Return a text without what who asked for it said."""
    echoes = ("run=beta", 'value="beta"', '"run":"beta"', ">beta<", run_pages.href("beta"), f"/{address}")
    for said in echoes:
        text = text.replace(said, "")
    return text


def test_without_a_good_token_there_is_nothing(lake, tmp_path, monkeypatch):
    """None, expired, changed, of another key or purpose, of a role that is gone: refused, whatever the address."""
    monkeypatch.setattr(app_module, "_FAILED_BURST", 1_000)
    path = written(tmp_path, {"reader": {"classes": ["operational"], "tables": TABLES}})
    good = token("reader")
    bad = {
        "none": "",
        "expired": token("reader", hours=-1),
        "changed": good[:-1] + ("A" if good[-1] != "A" else "B"),
        "another key": token("reader", keys=Keyring((Key(bytes(32)),))),
        "another purpose": token("reader", purpose=PROFILE),
        "no role": token(""),
        "gone": token("nobody"),
        "long": "a" * 5000,
    }
    with asking(lake, viewers=viewers_of(lake, path), url=SECURE) as client:
        for name, value in bad.items():
            for address in ("", "runs/", "assets/site.js", "explore/", "explore/points.json?run=beta", *LIVE):
                answer = client.get(f"/{address}", headers={"Cookie": f"{COOKIE}={value}"})
                assert answer.status_code == 401, (name, address)
                assert "alpha" not in answer.text
            if name != "gone":
                assert client.get("/login", params={"token": value}).status_code == 401
        assert client.get("/serving/", **as_role("reader")).status_code == 200


def test_what_goes_wrong_is_told_to_who_may_see_all_alone(lake, tmp_path, monkeypatch):
    """A bug's text may hold a value: of a page that cannot be made a role learns no more than that."""
    path = written(tmp_path, {"reader": {"classes": ["operational"], "tables": TABLES}})

    def fails(*_args, **_given):
        raise ValueError("canary")

    monkeypatch.setattr(pages_module, "run_questions", fails)
    with asking(lake) as client:
        assert "canary" in client.get("/runs/run-x.html").text
    with asking(lake, viewers=viewers_of(lake, path), url=SECURE) as client:
        answer = client.get("/runs/run-x.html", **as_role("reader"))
        assert answer.status_code == 500
        assert "canary" not in answer.text


def test_an_address_logs_in_once(lake, tmp_path):
    """Its token goes into a cookie that no script reads and no other site sends along; each login is noted."""
    path = written(tmp_path, {"reader": {"classes": ["operational"], "tables": TABLES}})
    noted = []
    viewers = viewers_of(lake, path, note=lambda role, who: noted.append((role, who)))
    with asking(lake, viewers=viewers, url=SECURE) as client:
        answer = client.get("/login", params={"token": token("reader")})
        assert (answer.status_code, answer.headers["location"]) == (303, "./")
        cookie = answer.headers["set-cookie"].lower()
        assert [
            word for word in ("httponly", "secure", "samesite=lax", "path=/", "max-age=3") if word not in cookie
        ] == []
        assert "domain" not in cookie
        assert client.get("/serving/").status_code == 200
        assert "as role reader sees it" in client.get("/serving/").text
    assert noted == [("reader", "eve")]


def test_lakes_that_share_a_key_share_neither_tokens_nor_cookies(lake, tmp_path):
    """A browser sends the cookies of both servers to each, whatever their ports; a token opens its own lake alone."""
    path = written(tmp_path, {"reader": {"classes": ["operational"], "tables": TABLES}})
    other = Lake.create(str(tmp_path / "other"))
    purposes = {each.uri: view_purpose(each.store.marker()) for each in (lake, other)}
    tokens = {uri: token("reader", purpose=purpose) for uri, purpose in purposes.items()}
    jar = {}
    for each in (lake, other):
        viewers = viewers_of(each, path, purpose=purposes[each.uri])
        jar[viewers.cookie] = tokens[each.uri]
        with asking(each, viewers=viewers, url=SECURE) as client:
            for uri, value in tokens.items():
                assert client.get("/login", params={"token": value}).status_code == (303 if uri == each.uri else 401)
    assert len(jar) == 2
    cookies = {"headers": {"Cookie": "; ".join(f"{name}={value}" for name, value in jar.items())}}
    for each in (lake, other):
        with asking(each, viewers=viewers_of(each, path, purpose=purposes[each.uri]), url=SECURE) as client:
            assert client.get("/serving/", **cookies).status_code == 200
            client.cookies.clear()
            assert client.get("/serving/").status_code == 401


def test_a_role_or_grant_that_ends_ends_what_is_shown(lake, tmp_path, monkeypatch):
    """At the next look: a page that was made before is shown no more."""
    monkeypatch.setattr(viewers_module, "_KEPT_S", 0.0)
    role = {"classes": ["operational"], "tables": TABLES}
    path = written(tmp_path, {"reader": role})
    refusals = []
    viewers = viewers_of(lake, path, refusal=lambda _role, who: refusals[-1] if refusals and who == "eve" else "")
    with asking(lake, viewers=viewers, url=SECURE) as client:
        assert client.get("/serving/", **as_role("reader")).status_code == 200
        refusals.append("the grant was revoked")
        assert client.get("/serving/", **as_role("reader")).status_code == 401
        assert client.get("/serving/", **as_role("reader", to="ada")).status_code == 200
        written(tmp_path, {"reader": {**role, "until": "2020-01-01"}})
        assert client.get("/serving/", **as_role("reader", to="ada")).status_code == 401


@pytest.fixture
def here(tmp_path, lake, monkeypatch):
    """Give a folder whose configuration has roles and a key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKLAKE_LAKE", lake.uri)
    written(tmp_path, {"reader": {"classes": ["operational"], "tables": TABLES, "runs": "run LIKE 'alpha%'"}})
    (tmp_path / "key").write_text("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "ranklake.toml").write_text(f'[sql]\nroles = "roles.yaml"\n[shares]\nkey = "file:{tmp_path}/key"\n')
    return tmp_path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "--host: pages and tokens would pass in clear"),
        (["--name", "ui.example", "--role", "reader"], "leave --role out"),
        (["--host", "0.0.0.0", "--tls-cert", "cert.pem"], "would pass in clear"),
        (["--tls-cert", "cert.pem"], "--tls-cert and --tls-key go together"),
        (["--tls-key", "key.pem"], "--tls-cert and --tls-key go together"),
        (["--role", "raeder"], "did you mean 'reader'"),
    ],
)
def test_what_would_be_open_to_others_is_refused(here, capsys, options, said):
    """In one line, before anything listens."""
    assert run(["ui", *options]) == 2
    assert said in capsys.readouterr().err


def test_without_a_key_nobody_else_is_served(here, capsys):
    """There would be no token to ask for."""
    (here / "ranklake.toml").write_text('[sql]\nroles = "roles.yaml"\n')
    assert run(["ui", "--name", "ui.example"]) == 2
    assert "[shares] key: no key to make profiles with" in capsys.readouterr().err


def test_an_address_is_for_a_role_that_there_is(here, lake, capsys):
    """It is printed, and the audit log has it without the token."""
    assert run(["sharing", "view", "nobody", "--to", "eve", "--until", "8h"]) == 2
    assert "unknown role 'nobody'" in capsys.readouterr().err
    assert run(["sharing", "view", "reader", "--to", "eve", "--until", "8h", "--endpoint", "https://ui.example"]) == 0
    url = capsys.readouterr().out.strip()
    assert url.startswith("https://ui.example/login?token=")
    assert run(["audit", "list", "--json"]) == 0
    trail = capsys.readouterr().out
    assert "ui.view" in trail
    assert url.partition("token=")[2] not in trail


@pytest.mark.slow
def test_a_server_with_a_name_serves_who_has_an_address(here, lake, capsys):
    """A process of its own behind a name: nothing without login; with it, the pages of the role, and no others."""
    assert run(["sharing", "view", "reader", "--to", "eve", "--until", "8h"]) == 0
    login = capsys.readouterr().out.strip().partition("/login")[2]

    def ask(path, **headers):
        request = urllib.request.Request(f"{url}{path}", headers={"Host": "ui.example", **headers})
        try:
            with opener.open(request, timeout=60) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_):
            return None

    opener = urllib.request.build_opener(Stay)
    with ui_server(lake, "--name", "ui.example", folder=here) as url:
        assert ask("runs/")[0] == 401
        status, headers, _ = ask(f"login{login}")
        assert status == 303
        cookie = {"Cookie": headers["Set-Cookie"].partition(";")[0]}
        status, _, text = ask("runs/", **cookie)
        assert (status, "alpha-1" in text, "beta" in text) == (200, True, False)
        assert ask("runs/", **cookie, Host="evil.example")[0] == 421
