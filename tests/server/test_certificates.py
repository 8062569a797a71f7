"""HTTPS with certificates on both sides, and files that are replaced while it runs."""

import selectors
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import cast

import pytest

from extender.settings.load import SettingsError, load_settings
from tests.api import bodies
from tests.api.bodies import pod
from tests.api.certificates import Authority
from tests.api.processes import Server, demo, request
from tests.api.services import Answer

BODY = bodies.args(pod(gpus=2), ["h100-0", "a100-0", "t4-0", "cpu-0"])
REFUSALS = (ssl.SSLError, ConnectionError, HTTPException)


class Files:
    """The files that a server is told of, as they are replaced."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        folder.mkdir()
        self._paths = [folder / name for name in ("tls.crt", "tls.key", "ca.crt")]
        self.replace(authority)

    def replace(self, authority: Authority) -> None:
        """A new certificate and key from an authority, and its CA for clients."""
        for source, path in zip((*authority.issue("server"), authority.certificate), self._paths, strict=True):
            new = path.with_suffix(".new")
            shutil.copyfile(source, new)
            new.replace(path)

    def garble(self) -> None:
        """What a reader sees in the middle of a copy."""
        self._paths[0].write_text("-----BEGIN CERTIFICATE-----\n")

    def settings(self, *, mutual: bool = True) -> list[str]:
        """Settings of a server, which wants certificates if `mutual`."""
        names = ("tls_cert_file", "tls_key_file", "tls_client_ca_file")[: 3 if mutual else 2]
        return [f"server.{name}={path}" for name, path in zip(names, self._paths, strict=False)]


@contextmanager
def connection(server: Server, context: ssl.SSLContext) -> Iterator[HTTPSConnection]:
    """A connection of its own."""
    found = HTTPSConnection("127.0.0.1", server.port, timeout=20, context=context)
    try:
        yield found
    finally:
        found.close()


def call(server: Server, context: ssl.SSLContext, method: str, path: str, body: bytes | None = None) -> Answer:
    """One request on a connection of its own."""
    with connection(server, context) as found:
        return request(found, method, path, body)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder / "first", "first")


@pytest.fixture(scope="module")
def files(folder: Path, authority: Authority) -> Files:
    return Files(folder / "mounted", authority)


@contextmanager
def ready(log: Path, authority: Authority, *settings: str) -> Iterator[Server]:
    """A demo over HTTPS, once it is ready."""
    with demo(log, [f"--set={setting}" for setting in settings]) as process:
        server = Server(process, log)
        nobody = authority.client()  # as a kubelet
        server.wait_for(lambda: call(server, nobody, "GET", "/readyz").status == 200)
        yield server
        assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def mutual(folder: Path, authority: Authority, files: Files) -> Iterator[Server]:
    """It wants certificates, and has few connections."""
    few = ["server.request_s=8", "server.max_connections=12", "server.max_connections_each=8"]
    with ready(folder / "log", authority, *files.settings(), *few) as server:
        yield server


def test_verbs_are_for_clients_with_a_certificate(tmp_path: Path, authority: Authority, mutual: Server) -> None:
    nobody, somebody = authority.client(), authority.client(authority.issue("kube-scheduler"))
    assert call(mutual, somebody, "POST", "/filter", BODY).json()["Error"] == ""
    with connection(mutual, somebody) as kept:
        for _ in range(2):
            assert request(kept, "POST", "/filter", BODY).json()["Error"] == ""
    for verb in ("filter", "prioritize", "bind"):
        answer = call(mutual, nobody, "POST", f"/{verb}", BODY)
        assert answer.status == 403
        assert answer.json()["Error"].startswith("a client certificate is required")
    for webhook in ("mutate", "gate"):  # the API server shows none
        assert call(mutual, nobody, "POST", f"/{webhook}", b"{}").json()["response"]["allowed"] is True
    stranger = Authority(tmp_path / "stranger", "stranger").issue("kube-scheduler")
    with pytest.raises(REFUSALS):
        call(mutual, authority.client(stranger), "POST", "/bind", BODY)
    with pytest.raises(REFUSALS), mutual.connection() as plain:
        request(plain, "POST", "/bind", BODY)


def test_incomplete_settings_and_invalid_files_are_named(tmp_path: Path, authority: Authority) -> None:
    for name in ("tls_cert_file", "tls_client_ca_file"):
        with pytest.raises(SettingsError, match="tls_cert_file and tls_key_file"):
            load_settings(flags={f"server.{name}": "/file"})
    garbled = Files(tmp_path / "garbled", authority)
    garbled.garble()
    with demo(tmp_path / "log", [f"--set={setting}" for setting in garbled.settings()]) as process:
        assert process.wait(timeout=30) == 1
    log = (tmp_path / "log").read_text()
    assert "tls.crt" in log
    assert "Traceback" not in log


@contextmanager
def silent(server: Server) -> Iterator[list[socket.socket]]:
    """Forty connections that say nothing."""
    with ExitStack() as opened:
        yield [
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20)) for _ in range(40)
        ]


def wait_for_ends(connections: list[socket.socket], num: int) -> None:
    """Wait until the server has closed that many, in any order: under load it may take them in another than ours."""
    with selectors.DefaultSelector() as opened:
        for one in connections:
            opened.register(one, selectors.EVENT_READ)
        while len(connections) - len(opened.get_map()) < num:
            for key, _ in opened.select(timeout=20.0) or pytest.fail(f"fewer than {num} have ended"):
                with suppress(ConnectionError):
                    assert cast(socket.socket, key.fileobj).recv(1) == b""
                opened.unregister(key.fileobj)


def test_connections_without_a_handshake_are_counted_and_closed_in_time(authority: Authority, mutual: Server) -> None:
    nobody, somebody = authority.client(), authority.client(authority.issue("kube-scheduler"))
    with connection(mutual, somebody) as kept:
        assert request(kept, "POST", "/filter", BODY).json()["Error"] == ""
        first = kept.sock
        with silent(mutual) as opened:
            began = time.monotonic()
            wait_for_ends(opened, 32)
            assert time.monotonic() - began < 7.0, "they made room before their time was over"
            assert call(mutual, nobody, "GET", "/readyz").status == 200
            assert request(kept, "POST", "/filter", BODY).json()["Error"] == ""
            wait_for_ends(opened, 40)
            assert time.monotonic() - began < 25.0, "asyncio's own limit is a minute"
        assert request(kept, "POST", "/filter", BODY).json()["Error"] == ""
        assert kept.sock is first


def test_https_without_client_certificates_and_an_end_that_nothing_holds_up(
    tmp_path: Path, authority: Authority
) -> None:
    """Connections without a handshake do not."""
    settings = Files(tmp_path / "mounted", authority).settings(mutual=False)
    with ready(tmp_path / "log", authority, *settings, "server.request_s=60") as server:
        assert call(server, authority.client(), "POST", "/filter", BODY).json()["Error"] == ""
        with silent(server):
            server.terminate()
            assert server.process.wait(timeout=20) == 0


def test_replaced_files_are_taken_over_by_new_connections(
    tmp_path: Path, authority: Authority, files: Files, mutual: Server
) -> None:
    """The last one: who trusted the first authority trusts the server no more."""
    second = Authority(tmp_path / "second", "second")
    before, after = authority.client(authority.issue("client")), second.client(second.issue("client"))
    with connection(mutual, before) as kept:
        assert request(kept, "GET", "/readyz").status == 200
        files.garble()
        assert call(mutual, before, "POST", "/filter", BODY).status == 200, "what is no certificate changes nothing"
        files.replace(second)
        assert call(mutual, after, "POST", "/filter", BODY).json()["Error"] == ""
        with pytest.raises(REFUSALS):
            call(mutual, before, "POST", "/filter", BODY)  # neither does the client trust the server any more
        distrusted = second.client(authority.issue("client"))
        with pytest.raises(REFUSALS):
            call(mutual, distrusted, "POST", "/filter", BODY)
        assert request(kept, "POST", "/filter", BODY).json()["Error"] == "", "a connection that is open stays"
    assert "new certificates are in use" in mutual.log
    assert "changed certificates could not be loaded" in mutual.log
