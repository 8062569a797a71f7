"""A web server that answers as a test says, a stall included."""

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

Page = tuple[int, bytes]
Answer = Callable[[str, Mapping[str, str], Mapping[str, str]], Page | None]
"""From path, query and headers to status and body; None accepts and never answers."""


class Server:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Mapping[str, str], Mapping[str, str]]] = []
        """Path, query and headers of every request."""
        self.ending = threading.Event()
        self.url = ""


@contextmanager
def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Serve on a free port of loopback, by HTTPS where that is given."""
    server = Server(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
            headers = dict(self.headers)
            server.asked.append((parts.path, query, headers))
            page = server.answer(parts.path, query, headers)
            if page is None:
                server.ending.wait(60)
                return
            status, body = page
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # the client has gone: time-outs are what some tests are about

    with Quiet(("127.0.0.1", 0), Handler) as http:
        server.url = f"{'https' if tls else 'http'}://127.0.0.1:{http.server_address[1]}"
        if tls is not None:
            http.socket = tls.wrap_socket(http.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.ending.set()
            http.shutdown()
            thread.join()
