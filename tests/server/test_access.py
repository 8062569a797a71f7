"""Access of readers: on loopback, by token, by certificate; and their rates."""

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
from tests.kube.loops import in_loop

TOKEN = "a-token-of-many-letters"
OTHER = "another-token-of-letters"
WRONG = "wrong-token-of-letters"
ELSEWHERE = "10.1.2.3"
LET_IN = 200, 404, 503
"""Not refused: this Kerf has not read its cluster, and says so."""


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
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        body: bytes = b"",
    ) -> Answer:
        return asyncio.run(call(self._app, method, path, (body,), headers or {}, (client, 50000)))

    def statuses(self, path: str, number: int, *args: Any, **options: Any) -> list[int]:
        """Of so many calls."""
        return [self(path, *args, **options).status for _ in range(number)]


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def basic(text: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# for dashboards\n{TOKEN}\n\n  {OTHER}  \n")
    return path


def test_only_loopback_reads() -> None:
    service = Service()
    paths = ["/", "/nodes", "/explain/pod/a/b", "/telemetry", "/version", "/docs", "/openapi.json", "/no", "//healthz"]
    for path in paths:
        for client in ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"):
            assert service(path, client).status in LET_IN
        for client in (ELSEWHERE, "192.168.0.9", "fd00::1", "::ffff:10.1.2.3", "", "no address"):
            answer = service(path, client)
            assert answer.status == 403
            assert "kubectl port-forward" in answer.json()["detail"]
    assert service("/what-if", ELSEWHERE, method="POST", body=b"{}").status == 403
    assert service("/filter", ELSEWHERE).status == 403, "kube-scheduler sends no GET"
    everybody = Service(access__open_to="all")
    assert everybody("/nodes", ELSEWHERE, {"host": "kerf.example"}).status in LET_IN
    headers = service("/version").headers
    assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")


def test_probes_metrics_and_verbs_are_open() -> None:
    service = Service()
    for client in (ELSEWHERE, "127.0.0.1"):
        for path in ("/healthz", "/readyz", "/syncz", "/metrics"):
            assert service(path, client).status in (200, 503)
        args = bodies.args(pod(gpus=1), ["t4-0"])
        assert service("/filter", client, method="POST", body=args).status == 200
        assert service("/mutate", client, method="POST", body=b"{}").json()["response"]["allowed"] is True
    closed = Service(access__metrics="loopback")
    assert (closed("/metrics", ELSEWHERE).status, closed("/metrics").status) == (403, 200)


def test_a_token_gives_access_and_no_other_text_does(tokens: Path) -> None:
    service = Service(access__token_file=str(tokens))
    for token in (TOKEN, OTHER):
        for headers in (bearer(token), basic(f"anybody:{token}")):
            assert service("/nodes", ELSEWHERE, headers).status in LET_IN
    assert service("/nodes").status in LET_IN, "loopback needs none"
    wrong = [f"Bearer {token}" for token in (WRONG, f"{TOKEN}x", TOKEN[:-1], f"{TOKEN}\x00", "# for dashboards")]
    wrong += ["Bearer", f"Token {TOKEN}", "Basic \xff", basic(TOKEN)["authorization"]]
    for headers in ({}, *({"authorization": text} for text in wrong)):
        answer = service("/nodes", ELSEWHERE, headers)
        assert answer.status == 401
        assert "token" in answer.json()["detail"]
        assert answer.headers["www-authenticate"].startswith("B")
        assert TOKEN not in answer.content.decode()
    assert service("/nodes", headers=bearer(WRONG)).status == 401, "on loopback, too"


def test_the_token_file_is_read_again(tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = Service(access__token_file=str(tokens))

    def status(token: str) -> int:
        return service("/version", ELSEWHERE, bearer(token)).status

    assert status(TOKEN) == 200
    new = tokens.with_suffix(".new")
    new.write_text("a-token-that-is-new\n")
    new.replace(tokens)
    assert (status(TOKEN), status("a-token-that-is-new")) == (401, 200)
    tokens.write_text("short")
    assert (status("a-token-that-is-new"), status("short")) == (401, 401)
    tokens.unlink()
    assert [status(TOKEN) for _ in range(3)] == [401] * 3
    assert len([record for record in caplog.records if record.name == "extender.server.access"]) == 2
    tokens.write_text(TOKEN)
    assert status(TOKEN) == 200


def test_a_file_without_tokens_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    for text, fault in ((None, "No such file"), ("short\n", "fewer than 16"), ("x" * (2 << 20), "larger than 1 MiB")):
        if text is not None:
            path.write_text(text)
        with pytest.raises(TokenError, match=fault) as raised:
            Tokens(path).load()
        assert "short" not in str(raised.value)


def test_a_certificate_gives_access() -> None:
    """By the state of a connection whose certificate TLS has verified."""
    passed: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["path"])

    async def receive() -> Any: ...

    async def send(message: Any) -> None: ...

    guard = Guard(app, AccessSettings())
    scope = {"type": "http", "path": "/nodes", "headers": [], "client": (ELSEWHERE, 1)}
    asyncio.run(guard(scope, receive, send))
    assert passed == []
    asyncio.run(guard({**scope, "state": {CLIENT_CERTIFICATE: True}}, receive, send))
    assert passed == ["/nodes"]


# Browsers


def test_a_browser_on_this_machine_has_access_by_local_names() -> None:
    service = Service(access__hosts=["proxy"])
    for host in ("localhost", "localhost:8888", "127.0.0.1:8888", "[::1]:8888", "proxy"):
        for headers in ({"host": host}, {"host": host, "origin": f"http://{host}"}):
            assert service("/nodes", headers=headers).status in LET_IN
            assert service("/filter", headers=headers, method="POST", body=b"{}").status == 200


def test_pages_of_other_sites_neither_read_nor_bind() -> None:
    """By a name that resolves to loopback by now, or by forms that are sent across sites without asking."""
    service, local = Service(), "localhost:8888"
    for host, origin, site in (
        ("evil.example:8888", "", ""),
        ("localhost.evil.example", "", ""),
        ("evil.example:8888", "http://evil.example:8888", ""),
        (local, "http://evil.example", ""),
        (local, "http://localhost:9999", ""),
        (local, "null", ""),
        ("a1.localhost:8888", "", ""),
        ("a1.localhost:8888", "http://a1.localhost:8888", ""),
        ("localhost.:8888", "", ""),
        (local, "", "cross-site"),
        (local, "", "same-site"),
        (local, f"http://{local}", "cross-site"),
    ):
        given = {"host": host, "origin": origin, "sec-fetch-site": site}
        headers = {name: text for name, text in given.items() if text}
        assert service("/nodes", headers=headers).status == 403
        if origin:
            answer = service("/bind", headers=headers, method="POST", body=b"{}")
            assert (answer.status, list(answer.json())) == (403, ["Error"])


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_may_link_to_the_page_and_embed_nothing(tokens: Path, site: str) -> None:
    service = Service(access__token_file=str(tokens))
    embedded = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    for headers in (embedded, {**embedded, **basic(f"anybody:{TOKEN}")}):  # which a browser sends by itself
        assert {service(path, headers=headers).status for path in ("/", "/live", "/nodes", "/page/main.js")} == {403}
    for verb in ("/bind", "/gate", "/mutate"):
        assert service(verb, headers=embedded, method="POST", body=b"{}").status == 403
    assert Service(access__open_to="all")("/nodes", ELSEWHERE, embedded).status == 403
    followed = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    statuses = [service(path, headers=followed).status for path in ("/", "/docs", "/live", "/nodes")]
    assert statuses == [200, 200, 403, 403]
    assert service("/", headers={**followed, "sec-fetch-dest": "iframe"}).status == 403


def test_a_page_in_a_browser_takes_nothing_of_the_operators_rate() -> None:
    own = {"host": "localhost:8888", "sec-fetch-site": "same-origin"}
    for by_page in ({"host": "a7.localhost:8888"}, {"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}):
        service = Service(access__calls_per_s=0.001, burst=3)
        assert service.statuses("/live", 5, headers=by_page) == [403, 403, 403, 429, 429]
        assert service.statuses("/version", 3, headers=own) == [200, 200, 200]


# Rates


def test_each_client_has_a_rate(tokens: Path) -> None:
    service = Service(access__token_file=str(tokens), access__calls_per_s=0.5, burst=3)
    assert service.statuses("/version", 5) == [200, 200, 200, 429, 429]
    refused = service("/version")
    assert (refused.headers["retry-after"], "access.calls_per_s" in refused.json()["detail"]) == ("2", True)
    assert service("/version", headers=bearer(TOKEN)).status == 200, "another client"
    assert service.statuses("/version", 4, "10.0.0.1") == [401, 401, 401, 429], "guesses count"
    assert service.statuses("/page/main.js", 4, "10.0.0.2") == [401, 401, 401, 429], "wherever they go"
    assert service("/readyz").status in (200, 503), "probes are not counted"
    assert service("/filter", method="POST", body=b"{}").status == 200, "nor is kube-scheduler"
    service = Service(access__open_to="all", access__calls_per_s=0.5, burst=1)
    assert [service("/version", f"fd00::{number}").status for number in (1, 2)] == [200, 429], "of one network"
    assert service("/version", "fd00:0:0:1::1").status == 200


def test_files_of_the_page_have_a_higher_limit() -> None:
    """The page has some forty, and is blank without one."""
    service = Service(access__open_to="all", access__calls_per_s=0.001, burst=3)
    assert service.statuses("/page/main.js", 31, "10.0.0.1") == [200] * 30 + [429]
    assert service.statuses("/version", 4, "10.0.0.1") == [200, 200, 200, 429]


@in_loop
async def test_concurrent_calls_are_limited() -> None:
    release = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guard = Guard(app, AccessSettings(), at_once=2)
    calls = [asyncio.create_task(call(guard, "GET", "/", (b"",), {})) for _ in range(3)]
    await asyncio.sleep(0)
    assert (await calls[2]).status == 429
    release.set()
    assert [(await each).status for each in calls[:2]] == [200, 200]
    assert (await call(guard, "GET", "/", (b"",), {})).status == 200


def test_rates_refill_and_are_forgotten() -> None:
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


def test_a_what_if_question_has_its_own_limit() -> None:
    answer = Service()("/what-if", method="POST", body=b" " * (17 << 20))
    assert (answer.status, "16 MiB" in answer.json()["Error"]) == (413, True)


# Over real connections


def own_address() -> str:
    """An address of this machine that is not loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


def test_over_real_connections(tmp_path: Path, tokens: Path) -> None:
    """By an address that is not loopback: with a token or a certificate of the CA for clients."""
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
        assert call(address, nobody, bearer(WRONG)) == 401
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
