"""Login by a proxy: its header is believed from its own addresses alone; users have roles; too many requests wait."""

import http.client
import http.server
import threading
from contextlib import contextmanager
from functools import partial

import pytest
import yaml
from hidden_run import READER, TABLES, lake_with_a_hidden_run
from ui_client import asking, context_of, ui_server

from ranklake.commands.ui import _role
from ranklake.config.settings import UiSection
from ranklake.ui import app as app_module
from ranklake.ui.guard import RateLimit
from ranklake.ui.proxy_login import ProxyViewers
from ranklake.ui.viewers import NamedRoles
from ranklake.views.html import run_pages

pytestmark = pytest.mark.leaky("a client keeps its event loop")
HEADER = "X-Forwarded-Email"
USERS = [("ada@example.com", "all"), ("*@example.com", "reader")]
ROLES = {"all": {"classes": ["operational"], "tables": TABLES}, "reader": READER}
HIDDEN, SEEN = f"/{run_pages.href('beta')}", f"/{run_pages.href('alpha-1')}"
ADA = {HEADER: "ada@example.com"}


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of four runs."""
    return lake_with_a_hidden_run(tmp_path_factory.mktemp("proxied"))


@pytest.fixture
def roles(tmp_path):
    """Give the path of a file of roles."""
    path = tmp_path / "roles.yaml"
    path.write_text(yaml.safe_dump({"roles": ROLES}))
    return path


@contextmanager
def proxied(lake, roles, peer, *, proxies=("10.0.0.0/28", "fd00::7"), noted=None):
    """Give a client whose connections come from an address."""
    context = context_of(lake, **{"sql.roles": str(roles)})
    named = NamedRoles(lambda _role, _who: "", partial(_role, context), lambda *who: (noted or []).append(who))
    viewers = ProxyViewers(HEADER, proxies, USERS, named)
    with asking(lake, viewers=viewers, context=context, peer=peer) as client:
        yield client


def test_a_user_sees_what_their_role_sees(lake, roles):
    """By the first pattern that matches, whatever its case; nobody without a role."""
    with proxied(lake, roles, "10.0.0.7") as client:
        assert client.get(HIDDEN, headers=ADA).status_code == 200
        assert client.get(HIDDEN, headers={HEADER: "ADA@Example.com"}).status_code == 200
        assert client.get(HIDDEN, headers={HEADER: "bob@example.com"}).status_code == 404
        assert client.get(SEEN, headers={HEADER: "bob@example.com"}).status_code == 200
        assert client.get(SEEN, headers={HEADER: "bob@elsewhere.com"}).status_code == 401
        assert client.get(SEEN).status_code == 401
        assert client.get("/login?token=x").status_code == 404


@pytest.mark.parametrize("peer", ["10.0.0.16", "127.0.0.1", "::1", "fd00::8", "testclient", "::ffff:10.0.1.7"])
def test_the_header_from_elsewhere_is_refused(lake, roles, peer):
    """Whatever else the request says of where it comes from; at every kind of address."""
    with proxied(lake, roles, peer) as client:
        for path in (SEEN, "/", "/explore/points.json", "/explore/media.html", "/events", "/assets/site.js"):
            given = {**ADA, "X-Forwarded-For": "10.0.0.7", "X-Real-IP": "10.0.0.7", "Forwarded": "for=10.0.0.7"}
            assert client.get(path, headers=given).status_code == 401, path


@pytest.mark.parametrize(
    "names",
    [["ada@example.com", "eve@example.com"], ["eve@example.com, ada@example.com"], [""], [" "], ["a" * 400],
     ["ada@example.com\tx"]],
)  # fmt: skip
def test_a_header_that_names_no_single_user_is_refused(lake, roles, names):
    """A proxy that adds its header to that of whoever asks would let them choose."""
    with proxied(lake, roles, "10.0.0.7") as client:
        assert client.get(SEEN, headers=[(HEADER, name) for name in names]).status_code == 401


def test_each_user_is_noted_once_an_hour_and_has_an_own_limit(lake, roles, monkeypatch):
    """Reviews of grants go by that; one who asks too often waits, and others do not."""
    noted = []
    monkeypatch.setattr(app_module, "_BURST", 3)
    monkeypatch.setattr(app_module, "_PER_S", 0.001)
    with proxied(lake, roles, "10.0.0.7", noted=noted) as client:
        noted.append("none yet")  # or the list would be falsy
        statuses = [client.get("/serving/", headers=ADA).status_code for _ in range(5)]
        other = client.get(SEEN, headers={HEADER: "bob@example.com"})
    assert statuses == [200, 200, 200, 429, 429]
    assert other.status_code == 200


def test_who_is_not_let_in_may_not_try_for_ever(lake, roles):
    """From one address; those who are let in are not kept waiting by it."""
    with proxied(lake, roles, "10.0.0.7") as client:
        statuses = [client.get("/", headers={HEADER: f"u{n}@elsewhere.com"}).status_code for n in range(30)]
        assert (statuses[0], statuses[-1]) == (401, 429)
        assert client.get(SEEN, headers=ADA).status_code == 200


def test_a_limit_fills_again_and_forgets_names():
    """As many at once as the burst; a name that never asked has all."""
    limit = RateLimit(2, 1e6)
    assert [limit.take("a") for _ in range(3)] == [True, True, True]
    slow = RateLimit(2, 1e-9)
    assert [slow.take("a") for _ in range(3)] == [True, True, False]
    assert slow.take("b")


@pytest.mark.parametrize(
    "section",
    [
        {"user_header": "X-User"},
        {"user_header": "X-User", "proxies": ("not an address",), "users": ("a = b",)},
        {"user_header": "X-User", "proxies": ("10.0.0.7",), "users": ("a",)},
        {"user_header": "X-User", "proxies": ("10.0.0.7",), "users": ("= b",)},
    ],
)
def test_a_section_that_says_half_is_refused(section):
    """A header without addresses would be believed from nobody, or from all."""
    with pytest.raises(ValueError, match=r"go together|written as|does not appear"):
        UiSection(**section)


class Proxy(http.server.BaseHTTPRequestHandler):
    """A reverse proxy as oauth2-proxy is one: it takes out the header that it sets, and names who logged in."""

    port = 0

    def do_GET(self):
        """Pass a request on."""
        kept = {name: value for name, value in self.headers.items() if name.lower() != HEADER.lower()}
        upstream = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        upstream.request("GET", self.path, headers={**kept, HEADER: "bob@example.com"})
        answer = upstream.getresponse()
        body = answer.read()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        upstream.close()

    def log_message(self, *_):
        """Be silent."""


def status(port, path, source="127.0.0.1", headers=None):
    """Return the status of an answer to a request that comes from an address of this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(source, 0))
    connection.request("GET", path, headers={"Host": "ui.example.com", **(headers or {})})
    found = connection.getresponse()
    found.read()
    connection.close()
    return found.status


@pytest.mark.slow
def test_a_real_proxy_logs_people_in_and_cannot_be_gone_round(lake, roles, tmp_path):
    """Through it: the user's role, whatever header was sent along. From another address: refused."""
    (tmp_path / "ranklake.toml").write_text(
        f'[sql]\nroles = "{roles}"\n[ui]\nuser_header = "{HEADER}"\nproxies = ["127.0.0.1"]\n'
        'users = ["ada@example.com = all", "*@example.com = reader"]\n'
    )
    with ui_server(lake, "--name", "ui.example.com", folder=tmp_path) as url:
        port = int(url.rsplit(":", 1)[1].strip("/"))
        handler = type("Handler", (Proxy,), {"port": port})
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
            thread = threading.Thread(target=proxy.serve_forever)
            thread.start()
            through = proxy.server_address[1]
            assert status(through, SEEN) == 200
            assert status(through, HIDDEN) == 404
            assert status(through, HIDDEN, headers=ADA) == 404
            proxy.shutdown()
            thread.join()
        assert status(port, HIDDEN, headers=ADA) == 200  # from the proxy's address
        assert status(port, HIDDEN, "127.0.0.2", ADA) == 401
        assert status(port, SEEN, "127.0.0.2") == 401
