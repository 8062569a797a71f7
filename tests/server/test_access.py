"""Who may read: on loopback, by token, by certificate; and how much."""

import asyncio
import base64
import socket
import ssl
from collections.abc import Mapping
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from extender.api.app import create_app
from extender.cli.main import app
from extender.kube.memory import MemoryCluster
from extender.server.access import Guard, Rates, TokenError, Tokens
from extender.server.connections import CLIENT_CERTIFICATE
from extender.settings.access import AccessSettings
from extender.settings.load import load_settings
from tests.api import bodies
from tests.api.bodies import pod
from tests.api.certificates import Authority
from tests.api.processes import Server, demo, ready_demo, request
from tests.api.services import Answer, Clock, call

TOKEN = "a-token-of-many-letters"
OTHER = "another-token-of-letters"
LOOPBACK = ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"]
ELSEWHERE = ["10.1.2.3", "192.168.0.9", "fd00::1", "::ffff:10.1.2.3", "", "no address"]
LET_IN = 200, 404, 503
"""No answer about who asks: this Kerf has not read its cluster, and says so."""
READ = ["/", "/nodes", "/explain/pod/a/b", "/telemetry", "/version", "/docs", "/openapi.json", "/nowhere", "//healthz"]


class Service:
    """The app with some settings, called from anywhere."""

    def __init__(self, burst: int = 200, **settings: Any) -> None:
        flags = {name.replace("__", "."): value for name, value in settings.items()}
        self._app = create_app(load_settings(flags=flags), MemoryCluster(bodies.CLUSTER))
        self._app.user_middleware[-1].kwargs["burst"] = burst  # of the guard

    def __call__(
        self,
        path: str,
        client: str = "127.0.0.1",
        method: str = "GET",
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        return asyncio.run(call(self._app, method, path, (body,), headers or {}, (client, 50000)))


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# for dashboards\n{TOKEN}\n\n  {OTHER}  \n")
    return path


@pytest.mark.parametrize("client", LOOPBACK)
def test_loopback_reads(client: str) -> None:
    service = Service()
    for path in READ:
        assert service(path, client).status in LET_IN


@pytest.mark.parametrize("client", ELSEWHERE)
def test_nobody_else_does(client: str) -> None:
    service = Service()
    for path in READ:
        answer = service(path, client)
        assert answer.status == 403
        assert "kubectl port-forward" in answer.json()["detail"]
    assert service("/what-if", client, "POST", b"{}").status == 403
    assert service("/filter", client).status == 403  # not its POST: nothing that kube-scheduler sends


@pytest.mark.parametrize("client", ["10.1.2.3", "127.0.0.1"])
def test_probes_metrics_and_verbs_are_not_for_readers_alone(client: str) -> None:
    service = Service()
    for path in ("/healthz", "/readyz", "/syncz", "/metrics"):
        assert service(path, client).status in (200, 503)
    assert service("/filter", client, "POST", bodies.args(pod(gpus=1), ["t4-0"])).status == 200
    assert service("/mutate", client, "POST", b"{}").json()["response"]["allowed"] is True


def test_metrics_may_be_closed() -> None:
    service = Service(access__metrics="loopback")
    assert (service("/metrics", "10.1.2.3").status, service("/metrics").status) == (403, 200)


def test_all_may_be_let_in() -> None:
    assert Service(access__open_to="all")("/nodes", "10.1.2.3", headers={"host": "kerf.example"}).status in LET_IN


def test_a_token_opens(tokens: Path) -> None:
    service = Service(access__token_file=str(tokens))
    for token in (TOKEN, OTHER):
        assert service("/nodes", "10.1.2.3", headers=bearer(token)).status in LET_IN
        basic = base64.b64encode(f"anybody:{token}".encode()).decode()
        assert service("/nodes", "10.1.2.3", headers={"authorization": f"Basic {basic}"}).status in LET_IN
    assert service("/nodes").status in LET_IN, "loopback needs none"


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer wrong-token-of-letters",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}\x00",
        f"Token {TOKEN}",
        "Bearer # for dashboards",
        "Basic \xff",
        f"Basic {base64.b64encode(TOKEN.encode()).decode()}",
    ],
)
def test_no_other_text_opens(tokens: Path, authorization: str) -> None:
    service = Service(access__token_file=str(tokens))
    answer = service("/nodes", "10.1.2.3", headers={"authorization": authorization} if authorization else {})
    assert answer.status == 401
    assert "token" in answer.json()["detail"]
    assert answer.headers["www-authenticate"].startswith("B")
    assert TOKEN not in answer.content.decode()


def test_a_wrong_token_is_said_so_on_loopback_too(tokens: Path) -> None:
    assert Service(access__token_file=str(tokens))("/nodes", headers=bearer("wrong-token-of-letters")).status == 401


def test_tokens_are_read_again(tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = Service(access__token_file=str(tokens))

    def status(token: str) -> int:
        return service("/version", "10.1.2.3", headers=bearer(token)).status

    assert status(TOKEN) == 200
    new = tokens.with_suffix(".new")
    new.write_text("a-token-that-is-new\n")
    new.replace(tokens)
    assert (status(TOKEN), status("a-token-that-is-new")) == (401, 200)
    tokens.write_text("short")
    assert (status("a-token-that-is-new"), status("short")) == (401, 401)
    tokens.unlink()
    assert [status(TOKEN) for _ in range(3)] == [401] * 3
    assert len([record for record in caplog.records if "no token is accepted" in record.message]) == 2
    tokens.write_text(TOKEN)
    assert status(TOKEN) == 200


@pytest.mark.parametrize(
    ("text", "fault"),
    [(None, "No such file"), ("short\n", "fewer than 16"), ("x" * (2 << 20), "larger than 1 MiB")],
    ids=["missing", "short", "large"],
)
def test_a_file_without_tokens_is_said_so_at_the_start(tmp_path: Path, text: str | None, fault: str) -> None:
    path = tmp_path / "tokens"
    if text is not None:
        path.write_text(text)
    with pytest.raises(TokenError, match=fault) as raised:
        Tokens(path).load()
    assert "short" not in str(raised.value)


def test_a_certificate_opens() -> None:
    """The state of a connection whose certificate TLS has verified; tests of certificates make real ones."""
    passed: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["path"])

    scope = {"type": "http", "path": "/nodes", "headers": [], "client": ("10.1.2.3", 1)}

    async def receive() -> Any: ...

    async def send(message: Any) -> None: ...

    guard = Guard(app, AccessSettings())
    asyncio.run(guard(scope, receive, send))
    assert passed == []
    asyncio.run(guard({**scope, "state": {CLIENT_CERTIFICATE: True}}, receive, send))
    assert passed == ["/nodes"]


@pytest.mark.parametrize("host", ["localhost", "localhost:8888", "127.0.0.1:8888", "[::1]:8888", "proxy"])
def test_a_browser_on_this_machine_reads_by_its_own_names(host: str) -> None:
    service = Service(access__hosts=["proxy"])
    for headers in ({"host": host}, {"host": host, "origin": f"http://{host}"}):
        assert service("/nodes", headers=headers).status in LET_IN
        assert service("/filter", method="POST", body=b"{}", headers=headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:8888"},
        {"host": "localhost.evil.example"},
        {"host": "evil.example:8888", "origin": "http://evil.example:8888"},
        {"host": "localhost:8888", "origin": "http://evil.example"},
        {"host": "localhost:8888", "origin": "http://localhost:9999"},
        {"host": "localhost:8888", "origin": "null"},
        {"host": "a1.localhost:8888"},
        {"host": "a1.localhost:8888", "origin": "http://a1.localhost:8888"},
        {"host": "localhost.:8888"},
        {"host": "localhost:8888", "sec-fetch-site": "cross-site"},
        {"host": "localhost:8888", "sec-fetch-site": "same-site"},
        {"host": "localhost:8888", "origin": "http://localhost:8888", "sec-fetch-site": "cross-site"},
    ],
)
def test_pages_of_other_sites_neither_read_nor_bind(headers: dict[str, str]) -> None:
    """A name that leads to loopback by now, and forms that are sent across sites without asking."""
    service = Service()
    assert service("/nodes", headers=headers).status == 403
    if "origin" in headers:
        answer = service("/bind", method="POST", body=b"{}", headers=headers)
        assert (answer.status, list(answer.json())) == (403, ["Error"])


SITES = ["cross-site", "same-site"]


@pytest.mark.parametrize("site", SITES)
def test_images_and_scripts_of_other_sites_get_nothing_by_whatever_a_browser_sends_by_itself(
    tokens: Path, site: str
) -> None:
    by_page = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    basic = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
    service = Service(access__token_file=str(tokens))
    for path in ("/", "/live", "/nodes", "/page/main.js"):
        for headers in (by_page, {**by_page, "authorization": f"Basic {basic}"}):
            assert service(path, headers=headers).status == 403
    for verb in ("/bind", "/gate", "/mutate"):
        assert service(verb, method="POST", body=b"{}", headers=by_page).status == 403
    assert Service(access__open_to="all")("/nodes", "10.1.2.3", headers=by_page).status == 403


@pytest.mark.parametrize("site", SITES)
def test_a_link_to_the_page_may_be_followed_from_anywhere(site: str) -> None:
    followed = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    service = Service()
    assert service("/", headers=followed).status == service("/docs", headers=followed).status == 200
    assert service("/live", headers=followed).status == service("/nodes", headers=followed).status == 403
    assert service("/", headers={**followed, "sec-fetch-dest": "iframe"}).status == 403


@pytest.mark.parametrize(
    "by_page",
    [{"host": "a7.localhost:8888"}, {"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}],
    ids=["a name of its own", "an image", "a script"],
)
def test_a_page_in_a_browser_takes_nothing_of_the_operators_rate(by_page: dict[str, str]) -> None:
    service = Service(access__calls_per_s=0.001, burst=3)
    assert [service("/live", headers=by_page).status for _ in range(5)] == [403, 403, 403, 429, 429]
    own = {"host": "localhost:8888", "sec-fetch-site": "same-origin"}
    assert [service("/version", headers=own).status for _ in range(3)] == [200, 200, 200]


def test_one_client_can_not_keep_it_busy(tokens: Path) -> None:
    service = Service(access__token_file=str(tokens), access__calls_per_s=0.5, burst=3)
    statuses = [service("/version").status for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    refused = service("/version")
    assert (refused.headers["retry-after"], "access.calls_per_s" in refused.json()["detail"]) == ("2", True)
    assert service("/version", headers=bearer(TOKEN)).status == 200, "another client"
    assert [service("/version", "10.0.0.1").status for _ in range(4)] == [401, 401, 401, 429], "guesses count"
    assert service("/readyz").status in (200, 503), "probes are not counted"
    assert service("/filter", method="POST", body=b"{}").status == 200, "nor is kube-scheduler"


def test_addresses_of_one_network_are_one_client() -> None:
    service = Service(access__open_to="all", access__calls_per_s=0.5, burst=1)
    assert [service("/version", f"fd00::{n}").status for n in range(1, 3)] == [200, 429]
    assert service("/version", "fd00:0:0:1::1").status == 200


def test_files_of_the_page_have_a_larger_limit_of_their_own() -> None:
    """A page is some forty of them, and blank without one."""
    service = Service(access__open_to="all", access__calls_per_s=0.001, burst=3)
    assert [service("/page/main.js", "10.0.0.1").status for _ in range(31)] == [200] * 30 + [429]
    assert [service("/version", "10.0.0.1").status for _ in range(4)] == [200, 200, 200, 429]


def test_guesses_of_tokens_have_the_smaller_limit_wherever_they_go(tokens: Path) -> None:
    service = Service(access__token_file=str(tokens), access__calls_per_s=0.001, burst=3)
    assert [service("/page/main.js", "10.0.0.1").status for _ in range(4)] == [401, 401, 401, 429]


def test_calls_at_once_are_limited() -> None:
    release = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def statuses() -> list[int]:
        guard = Guard(app, AccessSettings(), at_once=2)
        calls = [asyncio.create_task(call(guard, "GET", "/", (b"",), {})) for _ in range(3)]
        await asyncio.sleep(0)
        third = await calls[2]
        release.set()
        before = [(await calls[0]).status, (await calls[1]).status, third.status]
        return [*before, (await call(guard, "GET", "/", (b"",), {})).status]

    assert asyncio.run(statuses()) == [200, 200, 429, 200]


def test_rates_refill_and_forget() -> None:
    clock = Clock()
    rates = Rates(per_s=2.0, burst=2, at_once=1, clock=clock)
    assert [rates.wait_s("a") for _ in range(3)] == [0.0, 0.0, 0.5]
    clock.now += 0.5
    assert [rates.wait_s("a"), rates.wait_s("a")] == [0.0, 0.5]
    clock.now += 60
    assert [rates.wait_s("a") for _ in range(3)] == [0.0, 0.0, 0.5], "a rest gives no more than the burst"
    for number in range(5000):
        rates.wait_s(f"client {number}")
    assert rates.num_clients == 1024


def test_answers_forbid_framing_and_guessing() -> None:
    headers = Service()("/version").headers
    assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")


def test_a_question_has_its_own_limit() -> None:
    service = Service()
    answer = service("/what-if", method="POST", body=b" " * (17 << 20))
    assert answer.status == 413
    assert answer.json()["Error"] == "the request body is larger than 16 MiB"


def own_address() -> str:
    """An address of this machine that is not loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


def test_over_real_connections(tmp_path: Path, tokens: Path) -> None:
    """By an address that others use: a token or a certificate of the CA for clients, and nothing less."""
    address = own_address()
    authority = Authority(tmp_path / "ca", "ca")
    certificate, key = authority.issue("server")
    files = {"tls_cert_file": certificate, "tls_key_file": key, "tls_client_ca_file": authority.certificate}
    arguments = [part for name, path in files.items() for part in ("--set", f"server.{name}={path}")]
    arguments += ["--set", "server.host=0.0.0.0", "--set", f"access.token_file={tokens}"]

    def call(host: str, client: ssl.SSLContext, headers: Mapping[str, str] | None = None) -> int:
        client.check_hostname = False
        connection = HTTPSConnection(host, server.port, timeout=20, context=client)
        connection.request("GET", "/nodes", headers=dict(headers or {}))
        try:
            return connection.getresponse().status
        finally:
            connection.close()

    with demo(tmp_path / "log", arguments) as process:
        server = Server(process, tmp_path / "log")
        nobody, somebody = authority.client(), authority.client(authority.issue("reader"))
        server.wait_for(lambda: call("127.0.0.1", nobody) == 200)
        assert call(address, nobody) == 401
        assert call(address, nobody, bearer("wrong-token-of-letters")) == 401
        assert call(address, nobody, bearer(TOKEN)) == 200
        assert call(address, somebody) == 200
        assert TOKEN not in server.log


def test_commands_show_a_token(tmp_path: Path, tokens: Path) -> None:
    address = own_address()
    with ready_demo(tmp_path / "log", "server.host=0.0.0.0", f"access.token_file={tokens}") as server:
        environment = {"KERF_SERVER_URL": f"http://{address}:{server.port}"}
        refused = CliRunner().invoke(app, ["top", "--once"], env=environment)
        assert (refused.exit_code, "send a token" in refused.output) == (1, True)
        shown = CliRunner().invoke(app, ["top", "--once"], env=environment | {"KERF_SERVER_TOKEN_FILE": str(tokens)})
        assert shown.exit_code == 0, shown.output
        assert "tokens travel in clear text" in server.log
        with server.connection() as connection:
            assert request(connection, "GET", "/nodes").status == 200
