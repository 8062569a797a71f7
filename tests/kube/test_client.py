"""The transport to a real API server, against a small HTTP server on loopback."""

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import certifi
import pytest
import uvloop
from aiohttp import web

from extender.kube.client import ApiError, ApiServer, CredentialsError, Transport, UnreachableError
from tests.ledger.builders import until

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TIMEOUT_S = 5.0


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy, no cluster of the machine's own."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server on a free port, which is yielded."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def write_kubeconfig(directory: Path, port: int, user: dict[str, str] | None = None) -> str:
    path = directory / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "u", "user": user or {}}],
                "contexts": [
                    {"name": "plain", "context": {"cluster": "c", "user": "u"}},
                    {"name": "broken", "context": {"cluster": "nowhere", "user": "u"}},
                ],
                "current-context": "plain",
            }
        )
    )
    return str(path)


def api_server(kubeconfig: str, *, context: str = "", request_timeout_s: float = TIMEOUT_S) -> ApiServer:
    return ApiServer(
        kubeconfig=kubeconfig,
        context=context,
        service_account_dir=Path("/nonexistent"),
        request_timeout_s=request_timeout_s,
    )


@dataclass
class Rig:
    """A transport and what its server was asked."""

    directory: Path
    handler: Handler | None = None
    user: dict[str, str] | None = None
    request_timeout_s: float = TIMEOUT_S
    asked: list[tuple[str, str, str, bytes]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path, request.query_string, await request.read()))
        self.headers.append(dict(request.headers))
        return await self.handler(request) if self.handler else web.json_response({"ok": True})

    def run(self, scenario: Callable[[Transport], Awaitable[None]]) -> None:
        async def run() -> None:
            async with serving(self.handle) as port:
                kubeconfig = write_kubeconfig(self.directory, port, self.user)
                transport = api_server(kubeconfig, request_timeout_s=self.request_timeout_s)
                await transport.start()
                try:
                    await scenario(transport)
                finally:
                    await transport.close()

        uvloop.run(run())


def answering(status: int, text: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text)

    return handler


async def calls(transport: Transport) -> list[Awaitable[object]]:
    return [transport.get("/x"), transport.post("/x", b"{}"), transport.patch("/x", b"{}"), first_batch(transport)]


async def first_batch(transport: Transport) -> list[bytes]:
    async for lines in transport.watch("/x", {}):
        return lines
    return []


# Requests.


def test_get_asks_with_its_query(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    async def scenario(transport: Transport) -> None:
        assert json.loads(await transport.get("/api/v1/pods", {"limit": "500", "continue": "a+b/c="})) == {"ok": True}

    rig.run(scenario)
    assert rig.asked == [("GET", "/api/v1/pods", "limit=500&continue=a%2Bb/c%3D", b"")]
    assert (rig.headers[0]["Accept"], rig.headers[0]["User-Agent"]) == ("application/json", "kerf")
    assert "Authorization" not in rig.headers[0]


@pytest.mark.parametrize(
    ("verb", "content_type"), [("post", "application/json"), ("patch", "application/merge-patch+json")]
)
def test_writes_carry_their_body_and_its_type(tmp_path: Path, verb: str, content_type: str) -> None:
    rig = Rig(tmp_path)

    async def scenario(transport: Transport) -> None:
        await getattr(transport, verb)("/api/v1/x", b'{"a":1}')

    rig.run(scenario)
    assert rig.asked == [(verb.upper(), "/api/v1/x", "", b'{"a":1}')]
    assert rig.headers[0]["Content-Type"] == content_type


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        pytest.param(
            409,
            '{"kind":"Status","code":409,"reason":"Conflict","message":"already assigned"}',
            "409 Conflict: already assigned",
            id="a Status",
        ),
        pytest.param(503, "upstream is away", "503: upstream is away", id="a proxy's text"),
        pytest.param(500, "", "500: ", id="nothing"),
        pytest.param(502, "x" * 10_000, "502: " + "x" * 200, id="a long page"),
        pytest.param(410, '{"code":410,"reason":"Expired"}', "410 Expired: ", id="expired"),
    ],
)
def test_error_answers(tmp_path: Path, status: int, text: str, error: str) -> None:
    async def scenario(transport: Transport) -> None:
        for call in await calls(transport):
            with pytest.raises(ApiError) as raised:
                await call
            assert (raised.value.status, str(raised.value)) == (status, error)

    Rig(tmp_path, answering(status, text)).run(scenario)


def test_an_api_server_that_is_not_there(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def run() -> None:
        transport = api_server(write_kubeconfig(tmp_path, port))
        await transport.start()
        for call in await calls(transport):
            with pytest.raises(UnreachableError, match=r"/x: .+"):
                await call
        await transport.close()

    uvloop.run(run())


def test_an_answer_that_takes_too_long(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario(transport: Transport) -> None:
        with pytest.raises(UnreachableError, match=r"^GET /x: .*[Tt]ime"):
            await transport.get("/x")
        with pytest.raises(UnreachableError, match=r"^POST /x: .*[Tt]ime"):
            await transport.post("/x", b"{}")

    Rig(tmp_path, handler, request_timeout_s=0.05).run(scenario)


def test_an_answer_that_breaks_off(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"{")
        assert request.transport is not None
        request.transport.close()
        return response

    async def scenario(transport: Transport) -> None:
        with pytest.raises(UnreachableError):
            await transport.get("/x")

    Rig(tmp_path, handler).run(scenario)


def test_nothing_is_asked_before_the_start() -> None:
    with pytest.raises(RuntimeError, match=r"before start\(\)"):
        uvloop.run(api_server("/nonexistent").get("/x"))


def test_to_close_what_was_never_started_is_nothing() -> None:
    uvloop.run(api_server("/nonexistent").close())


# Watches.


def streaming(*chunks: bytes) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0.01)  # so that the client reads each by itself: nothing tells that it has
        return response

    return handler


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        pytest.param([b"1\n", b"2\n"], [b"1", b"2"], id="a line each"),
        pytest.param([b"1\n2\n3\n"], [b"1", b"2", b"3"], id="many at once"),
        pytest.param([b'{"a', b'":1', b"}\n"], [b'{"a":1}'], id="a line in three parts"),
        pytest.param([b"1\n2", b"3\n4", b"5\n"], [b"1", b"23", b"45"], id="split anywhere"),
        pytest.param([b"1\n", b"2"], [b"1"], id="a last line without its end is none"),
        pytest.param(["ä\n".encode()[:1], "ä\n".encode()[1:]], ["ä".encode()], id="a character split"),
        pytest.param([b"x" * 300_000 + b"\n"], [b"x" * 300_000], id="a very long line"),
        pytest.param([], [], id="nothing"),
    ],
)
def test_lines_of_a_watch(tmp_path: Path, chunks: list[bytes], lines: list[bytes]) -> None:
    batches: list[list[bytes]] = []

    async def scenario(transport: Transport) -> None:
        async for batch in transport.watch("/api/v1/pods", {"watch": "true"}):
            batches.append(batch)

    rig = Rig(tmp_path, streaming(*chunks))
    rig.run(scenario)
    assert batches[0] == [], "told as soon as the stream is open"
    assert [line for batch in batches for line in batch] == lines
    assert rig.asked == [("GET", "/api/v1/pods", "watch=true", b"")]


def test_a_watch_outlasts_the_time_of_a_request(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(0.6)  # longer than that time
        await response.write(b"late\n")
        return response

    async def scenario(transport: Transport) -> None:
        batches = [batch async for batch in transport.watch("/x", {})]
        assert batches == [[], [b"late"]]

    Rig(tmp_path, handler, request_timeout_s=0.5).run(scenario)


def test_a_watch_that_is_silent_for_longer_than_it_was_to_last_is_dead(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"1\n")
        await asyncio.Event().wait()
        return response

    batches: list[list[bytes]] = []

    async def scenario(transport: Transport) -> None:
        with pytest.raises(UnreachableError, match=r"^watch of /x: .*[Tt]ime"):
            async for batch in transport.watch("/x", {"timeoutSeconds": "-4.9"}):  # and 5 s for it to end
                batches.append(batch)

    Rig(tmp_path, handler).run(scenario)
    assert batches == [[], [b"1"]]


def test_a_watch_that_breaks_off(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"1\n2")
        await until(lambda: [b"1"] in batches)
        assert request.transport is not None
        request.transport.close()
        return response

    batches: list[list[bytes]] = []

    async def scenario(transport: Transport) -> None:
        with pytest.raises(UnreachableError, match=r"^watch of /x: "):
            async for batch in transport.watch("/x", {}):
                batches.append(batch)

    Rig(tmp_path, handler).run(scenario)
    assert batches == [[], [b"1"]]


# Credentials.


def test_a_token_is_sent(tmp_path: Path) -> None:
    rig = Rig(tmp_path, user={"token": "secret"})

    async def scenario(transport: Transport) -> None:
        for call in await calls(transport):
            await call

    rig.run(scenario)
    assert [headers["Authorization"] for headers in rig.headers] == ["Bearer secret"] * 4


def test_basic_credentials_are_sent(tmp_path: Path) -> None:
    rig = Rig(tmp_path, user={"username": "ann", "password": "b"})

    async def scenario(transport: Transport) -> None:
        await transport.get("/x")

    rig.run(scenario)
    assert rig.headers[0]["Authorization"] == "Basic YW5uOmI="  # base64 of "ann:b"


def checking(token: Path, expected: str, *, then: Callable[[], object] | None = None) -> Handler:
    """Refuses all but the expected token; after the first refusal something happens."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") == f"Bearer {expected}":
            return web.json_response({"ok": True})
        if then:
            then()
        return web.json_response({"kind": "Status", "code": 401, "reason": "Unauthorized"}, status=401)

    return handler


@pytest.mark.parametrize("call", [0, 1, 2, 3], ids=["get", "post", "patch", "watch"])
def test_a_token_that_has_run_out_is_read_again_and_the_call_made_once_more(tmp_path: Path, call: int) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    rig = Rig(tmp_path, checking(token, "new", then=lambda: token.write_text("new")), {"tokenFile": str(token)})

    async def scenario(transport: Transport) -> None:
        awaitables = await calls(transport)
        await awaitables.pop(call)
        for unused in awaitables:
            unused.close()  # type: ignore[attr-defined]
        await transport.get("/x")

    rig.run(scenario)
    assert [headers["Authorization"] for headers in rig.headers] == ["Bearer old", "Bearer new", "Bearer new"]


def test_a_token_that_stays_refused_is_tried_twice_and_no_more(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    rig = Rig(tmp_path, checking(token, "new"), {"tokenFile": str(token)})

    async def scenario(transport: Transport) -> None:
        for number, call in enumerate(await calls(transport), start=1):
            with pytest.raises(ApiError, match=r"^401 Unauthorized"):
                await call
            assert len(rig.asked) == 2 * number

    rig.run(scenario)


def test_credentials_that_are_gone_when_they_are_read_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, answering(401, "{}"), {"token": "old"})

    async def scenario(transport: Transport) -> None:
        (tmp_path / "kubeconfig").unlink()
        for call in await calls(transport):
            with pytest.raises(CredentialsError, match="no usable credentials"):
                await call

    rig.run(scenario)


@pytest.mark.parametrize(
    ("content", "context"),
    [
        pytest.param(None, "", id="missing"),
        pytest.param("", "", id="empty"),
        pytest.param("{}", "", id="an empty object"),
        pytest.param("clusters: [", "", id="broken YAML"),
        pytest.param("just words", "", id="no object"),
        pytest.param("sample", "other", id="a context that is not in it"),
        pytest.param("sample", "broken", id="a context without its cluster"),
    ],
)
def test_a_kubeconfig_that_is_of_no_use(tmp_path: Path, content: str | None, context: str) -> None:
    path = Path(write_kubeconfig(tmp_path, 1))
    if content is None:
        path.unlink()
    elif content != "sample":
        path.write_text(content)

    async def run() -> None:
        transport = api_server(str(path), context=context)
        try:
            with pytest.raises(CredentialsError, match=r"(?s)no usable credentials .*--kubeconfig"):
                await transport.start()
        finally:
            await transport.close()

    uvloop.run(run())


# In a pod.

SECRET = "secret\n"


def service_account(directory: Path, *, token: str | None = SECRET, certificates: str | None = None) -> Path:
    account = directory / "serviceaccount"
    account.mkdir()
    if token is not None:
        (account / "token").write_text(token)
    (account / "ca.crt").write_text(Path(certifi.where()).read_text() if certificates is None else certificates)
    return account


async def in_cluster(account: Path, monkeypatch: pytest.MonkeyPatch, port: int = 443) -> ApiServer:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
    return ApiServer(service_account_dir=account, request_timeout_s=TIMEOUT_S)


@pytest.mark.parametrize(
    ("token", "certificates"),
    [
        pytest.param(None, None, id="no token"),
        pytest.param("", None, id="an empty token"),
        pytest.param("secret", "", id="no certificates"),
        pytest.param("secret", "not PEM", id="certificates that are none"),
    ],
)
def test_a_service_account_that_is_of_no_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None, certificates: str | None
) -> None:
    async def run() -> None:
        transport = await in_cluster(service_account(tmp_path, token=token, certificates=certificates), monkeypatch)
        with pytest.raises(CredentialsError, match="no usable credentials"):
            await transport.start()

    uvloop.run(run())


def test_a_kubeconfig_that_is_named_wins_over_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    rig = Rig(tmp_path)

    async def scenario(transport: Transport) -> None:
        await transport.get("/x")

    rig.run(scenario)
    assert len(rig.asked) == 1


def self_signed(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    certificate, key = directory / "tls.crt", directory / "tls.key"
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=kube-apiserver"),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-addext", "keyUsage=critical,digitalSignature,keyCertSign"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_in_a_pod_the_service_account_speaks_tls_and_its_token_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = self_signed(tmp_path)
    account = service_account(tmp_path, certificates=certificate.read_text())
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    tokens: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        tokens.append(request.headers["Authorization"])
        return web.json_response({}, status=200 if tokens[-1].endswith("new") else 401)

    async def run() -> None:
        async with serving(handler, tls) as port:
            transport = await in_cluster(account, monkeypatch, port)
            await transport.start()
            (account / "token").write_text("new")
            await transport.get("/x")
            await transport.close()

    uvloop.run(run())
    assert [token.lower() for token in tokens] == ["bearer secret", "bearer new"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_certificate_of_somebody_else_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = self_signed(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)

    async def run() -> None:
        async with serving(answering(200, "{}"), tls) as port:
            transport = await in_cluster(service_account(tmp_path), monkeypatch, port)
            await transport.start()
            with pytest.raises(UnreachableError, match="certificate"):
                await transport.get("/x")
            await transport.close()

    uvloop.run(run())
