"""The demo in a thread of this process, called over a real socket: a child process takes seconds to start."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from extender.api.app import create_app
from extender.demo.cluster import sample_cluster
from extender.demo.metrics import SampleFeed
from extender.kube.memory import MemoryCluster
from extender.settings.load import load_settings
from tests.api.services import Answer, call
from tests.controlplane.processes import wait_until

_WITHIN_S = 60.0


class Demo:
    """The demo's address."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    @contextmanager
    def connection(self) -> Iterator[HTTPConnection]:
        """A connection to it."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            yield connection
        finally:
            connection.close()


@contextmanager
def demo_here(cluster: MemoryCluster | None = None, *, ready: bool = True) -> Iterator[Demo]:
    """Run the demo, on the sample cluster by default; if `ready`, wait until it is."""
    cluster = cluster or MemoryCluster(sample_cluster())
    settings = load_settings(flags={"telemetry.interval_s": 2.0, "model.mode": "off"})
    app = create_app(settings, cluster, feed=SampleFeed(cluster))
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(_WITHIN_S)

    def ask(method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        answer: Answer = run(call(app, method, path, (body,), headers))
        return answer

    lifespan = app.router.lifespan_context(app)
    run(lifespan.__aenter__())
    try:
        if ready:
            wait_until(lambda: ask("GET", "/readyz", b"", {}).status == 200, _WITHIN_S, "it is ready")
        with _listening(ask) as port:
            yield Demo(port)
    finally:
        run(lifespan.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def _listening(ask: Any) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass_on()

        def do_POST(self) -> None:
            self._pass_on()

        def _pass_on(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = ask(self.command, self.path, self.rfile.read(int(headers.get("content-length", 0))), headers)
            self.send_response(answer.status)
            for name, value in {**answer.headers, "content-length": str(len(answer.content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            """Nowhere."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
