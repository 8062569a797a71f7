"""What stands between the parts: the Service of several replicas, and a network that holds a write back."""

import http.client
import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import answers, free_port
from tests.e2e.clusters import KerfProcess

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "accept-encoding"}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that breaks is nothing special here."""


class _Proxy:
    """A server in threads of its own, from entry to exit."""

    def __init__(self) -> None:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                proxy.answer(self, self.rfile.read(length) if length else None)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_any  # noqa: N815 - named by the library

            def log_message(self, format: str, *arguments: object) -> None:
                """Not a word."""

        self._server = _Server(("127.0.0.1", free_port()), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, call: BaseHTTPRequestHandler, body: bytes | None) -> None:
        """Answer one call."""
        raise NotImplementedError


def _forward(
    call: BaseHTTPRequestHandler,
    body: bytes | None,
    to: http.client.HTTPConnection,
    wait: Callable[[], object] = lambda: None,
) -> int:
    """Pass a call on, and its answer back as it comes, after a wait for each piece of a watch.

    Returns the status, also when nobody is left to be answered.
    """
    headers = {name: value for name, value in call.headers.items() if name.lower() not in _HOP_BY_HOP}
    to.request(call.command, call.path, body, headers)
    response = to.getresponse()
    try:
        _answer(call, response, wait)
    except OSError:
        call.close_connection = True
    return response.status


def _answer(call: BaseHTTPRequestHandler, response: http.client.HTTPResponse, wait: Callable[[], object]) -> None:
    length = response.headers.get("Content-Length")
    call.send_response(response.status)
    call.send_header("Content-Type", response.headers.get("Content-Type", "application/json"))
    if length is None:  # a watch: as long as the connection lives
        call.send_header("Connection", "close")
        call.close_connection = True
    else:
        call.send_header("Content-Length", length)
    call.end_headers()
    while chunk := response.read1(65536):
        if length is None:
            wait()
        call.wfile.write(chunk)
        call.wfile.flush()


class VendorProxy(_Proxy):
    """The API server of a vendor's cluster: what it says of its version is not what images of Kubernetes are called."""

    def __init__(self, plane: ControlPlane, version: str) -> None:
        super().__init__()
        self._version = version
        self._address = plane.url.removeprefix("https://")
        self._tls = ssl.create_default_context(cafile=str(plane.certificate))
        self._config = yaml.safe_load(plane.kubeconfig("admin").read_text())

    def kubeconfig(self, folder: Path) -> Path:
        """The administrator's, by way of this proxy."""
        path = folder / "vendor.kubeconfig"
        cluster = {"cluster": {"server": self.url}, "name": self._config["clusters"][0]["name"]}
        path.write_text(yaml.safe_dump(self._config | {"clusters": [cluster]}))
        return path

    def answer(self, call: BaseHTTPRequestHandler, body: bytes | None) -> None:
        # Clients that Kubernetes' own is made of send no token over HTTP.
        del call.headers["Authorization"]
        call.headers["Authorization"] = f"Bearer {self._config['users'][0]['user']['token']}"
        connection = http.client.HTTPSConnection(self._address, timeout=60, context=self._tls)
        try:
            if call.path.partition("?")[0] != "/version":
                _forward(call, body, connection)
                return
            connection.request("GET", call.path)
            said = json.loads(connection.getresponse().read()) | {"gitVersion": self._version}
            answer = json.dumps(said).encode()
            call.send_response(200)
            call.send_header("Content-Type", "application/json")
            call.send_header("Content-Length", str(len(answer)))
            call.end_headers()
            call.wfile.write(answer)
        except (OSError, http.client.HTTPException):
            call.close_connection = True
        finally:
            connection.close()


class LeaderProxy(_Proxy):
    """What a Kubernetes Service does: calls go to the replica whose /readyz says yes, and fail while none does."""

    def __init__(self, *replicas: KerfProcess) -> None:
        super().__init__()
        self.leader: KerfProcess | None = None
        self._replicas = replicas
        self._ended = threading.Event()
        self._probes = threading.Thread(target=self._probe, daemon=True)

    def __enter__(self) -> Self:
        self._probes.start()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        super().__exit__(kind, error, traceback)

    def answer(self, call: BaseHTTPRequestHandler, body: bytes | None) -> None:
        leader = self.leader
        if leader is None:
            call.send_error(503, "no replica is ready")
            return
        connection = http.client.HTTPConnection(leader.url.removeprefix("http://"), timeout=30)
        try:
            _forward(call, body, connection)
        except (OSError, http.client.HTTPException):
            call.close_connection = True  # as the caller of a dead replica sees it
        finally:
            connection.close()

    def _probe(self) -> None:
        while not self._ended.is_set():
            ready = [replica for replica in self._replicas if answers(f"{replica.url}/readyz")]
            self.leader = ready[0] if ready else None
            self._ended.wait(0.05)


class HoldingProxy(_Proxy):
    """A network between Kerf and the API server that can keep Bindings on their way for as long as a test wants."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__()
        self._address = plane.url.removeprefix("https://")
        self._tls = ssl.create_default_context(cafile=str(plane.certificate))
        self._open = threading.Event()
        self._open.set()
        self._num_to_hold = 0.0
        self._heard = threading.Event()
        self._heard.set()
        self.cut = False
        """While it is, no call gets through but Bindings that were held back."""
        self.held = threading.Event()
        """Set once a Binding is being held back."""
        self.statuses: list[int] = []
        """What the API server answered to Bindings that were held back."""

    def hold_bindings(self, most: float = float("inf")) -> None:
        """From now on Bindings, as many as that, come to here and no further."""
        self._num_to_hold = most
        self._open.clear()

    def mute(self) -> None:
        """From now on watches tell nothing."""
        self._heard.clear()

    def unmute(self) -> None:
        """What happened meanwhile is told."""
        self._heard.set()

    def let_go(self) -> None:
        """What was held back goes on its way."""
        self._open.set()

    def kubeconfig(self, plane: ControlPlane) -> Path:
        """Kerf's own kubeconfig, by way of this proxy."""
        config = yaml.safe_load(plane.kubeconfig("kerf").read_text())
        config["clusters"][0]["cluster"] = {"server": self.url}
        path = plane.directory / f"held-{self.url.rpartition(':')[2]}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def answer(self, call: BaseHTTPRequestHandler, body: bytes | None) -> None:
        held = call.path.endswith("/binding") and not self._open.is_set() and self._num_to_hold > 0
        if held:
            self._num_to_hold -= 1
            self.held.set()
            self._open.wait()
        elif self.cut:
            call.close_connection = True
            return
        connection = http.client.HTTPSConnection(self._address, timeout=600, context=self._tls)
        status = 0
        try:
            status = _forward(call, body, connection, self._heard.wait)
        except (OSError, http.client.HTTPException):
            call.close_connection = True
        finally:
            connection.close()
            if held:
                self.statuses.append(status)
