"""The client of a real API server, against a small HTTP server on loopback."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from extender.kube.client import ApiError, ApiServer, CredentialsError, Transport, UnreachableError
from tests.api.certificates import Authority
from tests.kube.http_servers import Handler, answering, client, kubeconfig_of, serving
from tests.kube.loops import in_loop
from tests.ledger.builders import until


class Server:
    """Records the requests, and answers them by a handler."""

    def __init__(self, folder: Path, handler: Handler | None = None, user: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._handler = handler or answering(200, '{"ok":true}')
        self._user = user
        self.requests: list[tuple[str, str, str, bytes]] = []
        self.headers: list[dict[str, str]] = []

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path, request.query_string, await request.read()))
        self.headers.append(dict(request.headers))
        return await self._handler(request)

    @asynccontextmanager
    async def client(self, request_timeout_s: float = 5.0) -> AsyncIterator[ApiServer]:
        async with serving(self._handle) as port:
            path = kubeconfig_of(self._folder, port, self._user)
            async with client(kubeconfig=path, request_timeout_s=request_timeout_s) as transport:
                yield transport


async def first_batch(transport: Transport) -> list[bytes]:
    async for lines in transport.watch("/x", {}):
        return lines
    return []


CALLS: tuple[Callable[[Transport], Awaitable[object]], ...] = (
    lambda transport: transport.get("/x"),
    lambda transport: transport.post("/x", b"{}"),
    lambda transport: transport.patch("/x", b"{}"),
    first_batch,
)


# Requests


@in_loop
async def test_requests_have_their_query_body_and_types(tmp_path: Path) -> None:
    server = Server(tmp_path)
    async with server.client() as transport:
        assert json.loads(await transport.get("/api/v1/pods", {"limit": "500", "continue": "a+b/c="})) == {"ok": True}
        for write in (transport.post, transport.patch, transport.ensure):
            await write("/api/v1/x", b'{"a":1}')
    assert server.requests == [
        ("GET", "/api/v1/pods", "limit=500&continue=a%2Bb/c%3D", b""),
        ("POST", "/api/v1/x", "", b'{"a":1}'),
        ("PATCH", "/api/v1/x", "", b'{"a":1}'),
        ("PATCH", "/api/v1/x", "fieldManager=kerf&force=true", b'{"a":1}'),
    ]
    read, *writes = server.headers
    assert (read["Accept"], read["User-Agent"]) == ("application/json", "kerf")
    assert "Authorization" not in read
    assert [headers["Content-Type"].partition("/")[2] for headers in writes] == [
        *("json", "merge-patch+json", "apply-patch+yaml")
    ]


@in_loop
async def test_error_answers(tmp_path: Path) -> None:
    rows = [
        (409, '{"kind":"Status","code":409,"reason":"Conflict","message":"assigned"}', "409 Conflict: assigned"),
        (503, "upstream is away", "503: upstream is away"),
        (502, "x" * 10_000, "502: " + "x" * 200),
        (410, '{"code":410,"reason":"Expired"}', "410 Expired: "),
    ]
    for status, text, words in rows:
        async with Server(tmp_path, answering(status, text)).client() as transport:
            for call in CALLS:
                with pytest.raises(ApiError) as raised:
                    await call(transport)
                assert (raised.value.status, str(raised.value)) == (status, words)


@in_loop
async def test_an_api_server_that_does_not_answer_or_breaks_off(tmp_path: Path) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    async def breaking_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"{")
        assert request.transport is not None
        request.transport.close()
        return response

    async with serving(silent) as port:
        pass  # nothing listens there any more
    async with client(kubeconfig=kubeconfig_of(tmp_path, port)) as transport:
        for call in CALLS:
            with pytest.raises(UnreachableError, match=r"/x: .+"):
                await call(transport)
    async with Server(tmp_path, silent).client(request_timeout_s=0.05) as transport:
        for name, call in zip(("GET", "POST"), CALLS, strict=False):
            with pytest.raises(UnreachableError, match=f"^{name} /x: .*[Tt]ime"):
                await call(transport)
    async with Server(tmp_path, breaking_off).client() as transport:
        with pytest.raises(UnreachableError):
            await transport.get("/x")


# Watches


def streaming(*chunks: bytes) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0.01)  # so that the client reads each by itself, which nothing shows
        return response

    return handler


@in_loop
async def test_lines_of_a_watch(tmp_path: Path) -> None:
    rows = [
        ([b"1\n2\n3\n"], [b"1", b"2", b"3"]),
        ([b'{"a', b'":1', b"}\n"], [b'{"a":1}']),
        ([b"1\n2", b"3\n4", b"5\n6"], [b"1", b"23", b"45"]),  # a last line without its end is none
        (["ä\n".encode()[:1], "ä\n".encode()[1:]], ["ä".encode()]),
        ([b"x" * 300_000 + b"\n"], [b"x" * 300_000]),
        ([], []),
    ]
    for chunks, lines in rows:
        server = Server(tmp_path, streaming(*chunks))
        async with server.client() as transport:
            batches = [batch async for batch in transport.watch("/api/v1/pods", {"watch": "true"})]
        assert batches[0] == [], "as soon as the stream is open"
        assert [line for batch in batches for line in batch] == lines
        assert server.requests == [("GET", "/api/v1/pods", "watch=true", b"")]


@in_loop
async def test_a_watch_outlasts_the_timeout_of_a_request(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(0.6)  # longer than the timeout
        await response.write(b"late\n")
        return response

    async with Server(tmp_path, handler).client(request_timeout_s=0.5) as transport:
        assert [batch async for batch in transport.watch("/x", {})] == [[], [b"late"]]


@in_loop
async def test_a_watch_that_is_silent_or_breaks_off(tmp_path: Path) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"1\n")
        return await asyncio.Event().wait()  # type: ignore[return-value]

    async def breaking_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"1\n2")
        await until(lambda: [b"1"] in batches)
        assert request.transport is not None
        request.transport.close()
        return response

    # Silent for more than the time that it was to last, and 5 s.
    for handler, query, words in ((silent, {"timeoutSeconds": "-4.9"}, ".*[Tt]ime"), (breaking_off, {}, "")):
        batches: list[list[bytes]] = []
        async with Server(tmp_path, handler).client() as transport:
            with pytest.raises(UnreachableError, match=f"^watch of /x: {words}"):
                async for batch in transport.watch("/x", query):
                    batches.append(batch)
        assert batches == [[], [b"1"]]


# Credentials


@in_loop
async def test_tokens_and_passwords_are_sent(tmp_path: Path) -> None:
    for user, sent in (
        ({"token": "secret"}, "Bearer secret"),
        ({"username": "ann", "password": "b"}, "Basic YW5uOmI="),  # base64 of "ann:b"
    ):
        server = Server(tmp_path, user=user)
        async with server.client() as transport:
            for call in CALLS:
                await call(transport)
        assert [headers["Authorization"] for headers in server.headers] == [sent] * 4


@in_loop
async def test_an_expired_token_is_read_again_and_the_request_repeated(tmp_path: Path) -> None:
    token = tmp_path / "token"

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] == "Bearer new":
            return web.json_response({"ok": True})
        token.write_text("new")
        return web.json_response({}, status=401)

    for call in CALLS:
        token.write_text("old")
        server = Server(tmp_path, handler, {"tokenFile": str(token)})
        async with server.client() as transport:
            await call(transport)
            await transport.get("/x")
        assert [headers["Authorization"] for headers in server.headers] == ["Bearer old", "Bearer new", "Bearer new"]


@in_loop
async def test_a_token_that_stays_refused_is_tried_twice(tmp_path: Path) -> None:
    server = Server(tmp_path, answering(401, '{"code":401,"reason":"Unauthorized"}'), {"token": "old"})
    async with server.client() as transport:
        for number, call in enumerate(CALLS, start=1):
            with pytest.raises(ApiError, match=r"^401 Unauthorized"):
                await call(transport)
            assert len(server.requests) == 2 * number
        (tmp_path / "kubeconfig").unlink()
        for call in CALLS:
            with pytest.raises(CredentialsError, match="no usable credentials"):
                await call(transport)


@in_loop
async def test_an_unusable_kubeconfig_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"(?s)no usable credentials .*--kubeconfig"):
        await ApiServer(kubeconfig=str(tmp_path / "missing")).start()


# In a pod


def service_account(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, port: int = 443, token: str | None, ca: str
) -> Path:
    """The folder of a service account, and the environment of its pod."""
    folder.mkdir(exist_ok=True)
    (folder / "ca.crt").write_text(ca)
    if token is not None:
        (folder / "token").write_text(token)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
    return folder


@in_loop
async def test_an_unusable_service_account_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusted = Authority(tmp_path, "ca").certificate.read_text()
    for number, (token, ca) in enumerate(((None, trusted), ("", trusted), ("secret", ""), ("secret", "not PEM"))):
        account = service_account(tmp_path / str(number), monkeypatch, token=token, ca=ca)
        with pytest.raises(CredentialsError, match="no usable credentials"):
            await ApiServer(service_account_dir=account).start()


@in_loop
async def test_in_a_pod_the_client_trusts_its_ca_and_reads_its_token_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, other = Authority(tmp_path, "ca"), Authority(tmp_path / "other", "other")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*authority.issue("server"))
    tokens: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        tokens.append(request.headers["Authorization"])
        return web.json_response({}, status=200 if tokens[-1].endswith("new") else 401)

    async with serving(handler, tls) as port:
        for trusted in (other, authority):
            ca = trusted.certificate.read_text()
            folder = service_account(tmp_path / "account", monkeypatch, port=port, token="secret\n", ca=ca)
            async with client(service_account_dir=folder) as transport:
                if trusted is other:
                    with pytest.raises(UnreachableError, match="certificate"):
                        await transport.get("/x")
                else:
                    (folder / "token").write_text("new")
                    await transport.get("/x")
    assert tokens == ["Bearer secret", "Bearer new"]
