"""The open port: probes and metrics, and nothing else."""

import asyncio
import itertools
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from extender.server.run import _ReadOnly
from tests.api import bodies
from tests.api.bodies import pod
from tests.api.processes import Server, demo, ready_demo, request
from tests.api.services import Answer, Clock, call, running

OPEN = ("/healthz", "/readyz", "/syncz", "/metrics")
BODY = bodies.args(pod(gpus=2), ["h100-0", "a100-0"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with ready_demo(tmp_path_factory.mktemp("server") / "log", "server.metrics_port=0", "server.drain_s=0") as found:
        yield found


def ask(server: Server, method: str, path: str, body: bytes | None = None) -> Answer:
    """One request to the second port."""
    (port,) = re.findall(r"listening on \S+ port (\d+) for probes and metrics", server.log)
    connection = HTTPConnection("127.0.0.1", int(port), timeout=20)
    try:
        return request(connection, method, path, body)
    finally:
        connection.close()


def test_it_has_probes_and_metrics_and_nothing_else(server: Server) -> None:
    for path in OPEN:
        here, there = ask(server, "GET", path), server.get(path)
        assert here.status == there.status == 200
        assert here.headers["content-type"] == there.headers["content-type"]
        assert b"kerf_nodes" in here.content or here.json() == {"status": "ok"}
    refused = [("GET", path) for path in ("/", "/nodes", "/docs", "/openapi.json", "/live", "/explain/pod/a/b")]
    refused += [("GET", path) for path in ("/metrics/", "//metrics", "/Metrics", "/healthz/..")]
    refused += [("POST", path) for path in ("/filter", "/bind", "/mutate", "/gate", "/what-if", *OPEN)]
    for method, path in (*refused, ("HEAD", "/metrics"), ("OPTIONS", "/metrics"), ("DELETE", "/healthz")):
        answer = ask(server, method, path, BODY if method == "POST" else None)
        assert answer.status == 404, (method, path)


def test_a_port_in_use_is_named(server: Server, tmp_path: Path) -> None:
    with demo(tmp_path / "log", ["--set", f"server.metrics_port={server.port}"]) as process:
        assert process.wait(timeout=30) != 0
    log = (tmp_path / "log").read_text()
    assert f"port {server.port} of 127.0.0.1 is taken" in log
    assert "Traceback" not in log


def test_metrics_are_computed_once_a_second_and_requests_limited() -> None:
    clock, num_made = Clock(), itertools.count(1)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"%d" % next(num_made)})

    listener = _ReadOnly(app, clock)

    def get(path: str, address: str = "10.0.0.1") -> Answer:
        return asyncio.run(call(listener, "GET", path, (b"",), {}, (address, 1)))

    assert [get("/metrics").content for _ in range(3)] == [b"1", b"1", b"1"]
    clock.now += 1.1
    assert get("/metrics").content == b"2"
    answers = [get("/healthz").status for _ in range(100)]
    assert answers.count(429) > 30
    assert get("/healthz").status == 429
    assert get("/healthz", "10.0.0.2").status == 200  # the kubelet is another address
    clock.now += 1.0
    assert get("/healthz").status == 200


def test_metrics_for_loopback_only_are_refused_here_too() -> None:
    with running(access__metrics="loopback") as kerf:
        listener, statuses = _ReadOnly(kerf.app), list[int]()

        async def ask_all() -> None:
            for path in OPEN:
                statuses.append((await call(listener, "GET", path, (b"",), {}, ("10.0.0.1", 1))).status)

        kerf.run(ask_all())
    assert statuses == [200, 200, 200, 403]


def test_it_is_closed_with_the_other_one(server: Server) -> None:
    """It ends the server of the module."""
    assert ask(server, "GET", "/healthz").status == 200
    server.terminate()
    assert server.wait() == 0
