"""A process on a real socket: its start, bodies that are too large or cut off, and a stop that cuts nothing off."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.api import bodies
from tests.api.bodies import pod
from tests.api.processes import Server, demo, ready_demo, request

MIB = 1024 * 1024
BODY = bodies.args(pod(gpus=2), ["h100-0", "a100-0", "t4-0", "cpu-0"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A demo that takes bodies of up to 1 MiB."""
    log = tmp_path_factory.mktemp("server") / "log"
    with ready_demo(log, "server.max_body_mib=1") as found:
        yield found


def test_the_demo_answers(server: Server) -> None:
    assert server.get("/healthz").json() == {"status": "ok"}
    assert server.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"\nkerf_cache_lists_total 2.0\n" in server.get("/metrics").content  # one mirror, started once
    assert server.get("/docs").status == 200
    assert server.get("/nothing").status == 404
    with server.connection() as connection:
        answer = request(connection, "POST", "/filter", BODY)
        assert len(answer.json()["NodeNames"]) == 1
        assert "server" not in answer.headers
        assert request(connection, "GET", "/filter").status == 405


def test_a_body_over_the_limit_is_refused_and_the_connection_goes_on(server: Server) -> None:
    body = BODY + b" " * (3 * MIB)
    contents: tuple[bytes | Iterator[bytes], ...] = (body, iter((body, b" ")))  # with Content-Length, and chunked
    with server.connection() as connection:
        for content in contents:
            answer = request(connection, "POST", "/filter", content)
            assert (answer.status, "server.max_body_mib" in answer.json()["Error"]) == (200, True)
            kept = request(connection, "POST", "/filter", BODY)
            assert (kept.json()["Error"], "connection" in kept.headers) == ("", False)
        assert connection.sock is not None  # http.client drops it if the server closes


def has_read(raw: socket.socket) -> bool:
    """Whether a server of this machine has taken in all that was sent to it: nothing waits in its socket."""
    theirs, ours = (f":{address[1]:04X}" for address in (raw.getpeername(), raw.getsockname()))
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return any(
        found[1].endswith(theirs) and found[2].endswith(ours) and found[4].endswith(":00000000") for found in sockets
    )


def lets_in(server: Server) -> bool:
    """Whether it takes new connections."""
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5):
            return True
    except ConnectionError:
        return False


def test_a_caller_that_disconnects_is_not_logged(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY))
        raw.sendall(BODY[:100])
        server.wait_for(lambda: has_read(raw))
    assert server.get("/readyz").status == 200
    assert "ERROR" not in server.log


HALVES = [
    b"",
    b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Le",
    b"POST /gate HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n{",
    b"\r\n",
    b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    + BODY
    + b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",
]


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A demo that waits half a second for a request, and has few connections."""
    log = tmp_path_factory.mktemp("server") / "log"
    few = ["server.request_s=0.5", "server.max_connections=12", "server.max_connections_each=8", "server.drain_s=60"]
    with ready_demo(log, *few) as found:
        yield found


def test_requests_that_are_not_sent_to_their_end_are_cut_off(small_server: Server) -> None:
    for half in HALVES:
        with socket.create_connection(("127.0.0.1", small_server.port), timeout=20) as raw:
            raw.sendall(half)
            while raw.recv(65536):  # answers to whole requests
                pass
    with socket.create_connection(("127.0.0.1", small_server.port), timeout=20) as raw, pytest.raises(ConnectionError):
        raw.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(64):  # far more than the kernel keeps for a server that does not read
            raw.sendall((b"x: " + b"y" * 1000 + b"\r\n") * 1000)


def test_many_connections_lock_no_client_out(small_server: Server) -> None:
    with small_server.connection() as scheduler:
        assert request(scheduler, "POST", "/filter", BODY).status == 200
        first = scheduler.sock
        opened = [socket.create_connection(("127.0.0.1", small_server.port)) for _ in range(40)]
        for one in opened:
            one.sendall(HALVES[2])
        for _ in range(3):
            assert request(scheduler, "POST", "/filter", BODY).status == 200
        assert scheduler.sock is first
        assert small_server.get("/readyz").status == 200
        for one in opened:
            one.close()


def test_what_is_not_http_is_refused_and_not_logged(server: Server) -> None:
    """Anyone who reaches a port could fill the log."""
    before = len(server.log)
    upgrade = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    garbled = b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"POST /filter HTTP/1.1\r\nContent-Length: x\r\n\r\n"
    for junk in (*garbled, b"GET /\x1b[2J HTTP/1.1\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\n\r\n", upgrade):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
                raw.sendall(junk)
                assert raw.recv(4096).startswith(b"HTTP/1.1 400 " if junk in garbled else b"HTTP/1.1 ")
    assert server.get("/readyz").status == 200
    assert "uvicorn" not in server.log[before:]


# Stopping


class Caller(threading.Thread):
    """kube-scheduler under load: one request after the other on a kept connection."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self.statuses: list[int] = []
        self.fault: Exception | None = None
        self.told_to_close = False
        self.stop = threading.Event()

    def run(self) -> None:
        """Call until stopped; if the server wants the connection closed, open another."""
        try:
            while not self.stop.is_set():
                with self._server.connection() as connection:
                    self._use(connection)
        except Exception as error:
            self.fault = error

    def _use(self, connection: HTTPConnection) -> None:
        while not self.stop.is_set():
            answer = request(connection, "POST", "/filter", BODY)
            self.statuses.append(answer.status)
            assert answer.json()["Error"] == ""
            if answer.headers.get("connection") == "close":
                self.told_to_close = True
                return


def test_a_stop_under_load_cuts_no_request_off(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with demo(log, ["--set", "server.drain_s=4"]) as process:
        server = Server(process, log)
        callers = [Caller(server) for _ in range(3)]
        with server.connection() as idle:
            server.wait_for(lambda: request(idle, "GET", "/readyz").status == 200)
            for caller in callers:
                caller.start()
            server.wait_for(lambda: all(len(caller.statuses) > 20 for caller in callers))

            server.terminate()
            terminated = time.monotonic()
            # Not ready at once, and still serving: callers are led elsewhere meanwhile.
            server.wait_for(lambda: server.get("/readyz").status == 503, limit_s=3.8)
            assert server.get("/readyz").json() == {"status": "shutting down"}
            server.wait_for(lambda: all(caller.told_to_close for caller in callers), limit_s=3.8)
            for caller in callers:
                caller.stop.set()
            for caller in callers:
                caller.join(timeout=10)
            while time.monotonic() < terminated + 1.2:
                assert server.get("/readyz").status == 503
                time.sleep(0.05)  # all the while

            assert server.wait() == 0
        assert [caller.fault for caller in callers] == [None, None, None]
        assert {status for caller in callers for status in caller.statuses} == {200}
        assert "Traceback" not in server.log
        assert "ERROR" not in server.log


def test_a_request_under_way_is_answered_before_the_end(tmp_path: Path) -> None:
    with ready_demo(tmp_path / "log", "server.drain_s=0.1") as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
            raw.sendall(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY))
            raw.sendall(BODY[:100])
            server.wait_for(lambda: has_read(raw))
            server.terminate()
            server.wait_for(lambda: not lets_in(server))  # the drain time is over
            raw.sendall(BODY[100:])
            answer = b""
            while chunk := raw.recv(65536):
                answer += chunk
        head, _, content = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert b"connection: close" in head.lower()
        assert len(json.loads(content)["NodeNames"]) == 1
        assert server.wait() == 0


# These end the servers of the module.


def test_a_second_signal_ends_at_once(small_server: Server) -> None:
    small_server.terminate()
    small_server.wait_for(lambda: small_server.get("/readyz").status == 503)
    small_server.process.send_signal(signal.SIGINT)
    assert small_server.process.wait(timeout=30) == 0


def test_pages_that_are_open_hold_up_no_end(server: Server) -> None:
    with server.connection() as connection:
        connection.request("GET", "/live")
        stream = connection.getresponse()
        assert stream.readline() == b"event: begin\n"
        server.terminate()
        rest = stream.read()  # until the chunk that ends the answer: one that is cut off raises IncompleteRead
    assert b"event: tick\n" in rest
    assert server.wait() == 0
