"""A Kerf in a child process, called over a real socket."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import TypeVar

from tests.api.services import Answer
from tests.controlplane.processes import clean_environment

ResultT = TypeVar("ResultT")

_LISTENING = re.compile(r"listening on \S+ port (\d+)")


class Server:
    """A running `kerf demo`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self.port = int(self.wait_for(lambda: _LISTENING.search(self.log)).group(1))

    @property
    def log(self) -> str:
        """Its standard error so far."""
        return self._log.read_text()

    def wait_for(self, what: Callable[[], ResultT | None], limit_s: float = 90.0) -> ResultT:
        """Wait until a condition holds, and return its result."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            result = what()
            if result:
                return result
            assert self.process.poll() is None, self.log
            time.sleep(0.01)
        raise AssertionError(f"timed out; the log:\n{self.log}")

    @contextmanager
    def connection(self) -> Iterator[HTTPConnection]:
        """A keep-alive connection."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            yield connection
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        """GET on a new connection."""
        with self.connection() as connection:
            return request(connection, "GET", path)

    def terminate(self) -> None:
        """SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(timeout=40)


def request(connection: HTTPConnection, method: str, path: str, body: bytes | Iterator[bytes] | None = None) -> Answer:
    """One request; a body in chunks is sent without Content-Length."""
    connection.request(method, path, body, encode_chunked=True)
    response = connection.getresponse()
    content = response.read()
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, content)


@contextmanager
def ready_demo(log: Path, *settings: str) -> Iterator[Server]:
    """A demo with these settings, once it is ready; asserts at the end that its log has no traceback."""
    with demo(log, [f"--set={setting}" for setting in settings]) as process:
        server = Server(process, log)
        server.wait_for(lambda: server.get("/readyz").status == 200)
        yield server
        assert "Traceback" not in server.log


@contextmanager
def demo(
    log: Path, arguments: Sequence[str] = (), port: int = 0, module: str = "extender"
) -> Iterator[subprocess.Popen[bytes]]:
    """A child process that runs the demo of `module`; killed when the test ends."""
    command = [sys.executable, "-m", module, "demo", "--port", str(port), *arguments]
    with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr, env=clean_environment()) as process:
        try:
            yield process
        finally:
            process.kill()
