"""Histories fetched from a running Kerf: what is served is what is read, and each fault says what to do."""

import io
import tarfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from extender.history import files
from extender.history.records import HistoryError
from model.workloads.prometheus.client import Access
from model.workloads.served_histories import fetch
from tests.history.builders import history, nodes, pods


class Served:
    """An HTTP server with one answer."""

    def __init__(self) -> None:
        self.status, self.body = 200, b""
        self.num_missing = 0
        """Bytes that the connection breaks off before."""
        self.asked: list[tuple[str, str | None]] = []
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.asked.append((self.path, self.headers["Authorization"]))
                self.send_response(served.status)
                self.send_header("Content-Length", str(len(served.body) + served.num_missing))
                self.end_headers()
                self.wfile.write(served.body)

            def log_message(self, *args: Any) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    thread = Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


def test_what_is_served_is_what_is_read(served: Served, tmp_path: Path) -> None:
    kept = history(pods({"owner": "a/Job/x"}, {"gpus": 4}), nodes(8))
    files.write(tmp_path / "h", kept)
    served.body = b"".join(files.archive(files.opened(tmp_path / "h")))
    (tmp_path / "token").write_text("sesame\n")
    found = fetch(f"{served.url}/", Access(token_file=tmp_path / "token"), lambda told: None)
    assert found.about == kept.about
    assert found.pods["owner"].tolist() == ["a/Job/x", ""]
    assert served.asked == [("/history", "Bearer sesame")]


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (404, b'{"detail": "no history is recorded (setting history.path)"}', "404: no history is recorded"),
        (404, b"<html>", "does not answer as Kerf: check --server"),
        (401, b"", "a token is required: --token-file"),
        (403, b"", "kubectl port-forward"),
        (200, b"x" * 2000, "history is incomplete"),
        (200, b"", "history is incomplete"),
    ],
)
def test_faults_say_what_to_do(served: Served, status: int, body: bytes, told: str) -> None:
    served.status, served.body = status, body
    with pytest.raises(HistoryError, match=told):
        fetch(served.url, Access(), lambda told: None)


def test_what_was_cut_short_is_not_taken_for_all(served: Served, tmp_path: Path) -> None:
    files.write(tmp_path / "h", history(pods({}), nodes(8)))
    served.body = b"".join(files.archive(files.opened(tmp_path / "h")))[:6000]
    with pytest.raises(HistoryError):
        fetch(served.url, Access(), lambda told: None)


def test_nobody_there_is_said() -> None:
    with pytest.raises(HistoryError, match=r"no connection: .* check --server"):
        fetch("http://127.0.0.1:9", Access(), lambda told: None)
    with pytest.raises(HistoryError, match="write a URL"):
        fetch("localhost:8888", Access(), lambda told: None)


def test_no_file_of_an_archive_leaves_its_folder(served: Served, tmp_path: Path) -> None:
    hostile = io.BytesIO()
    with tarfile.open(fileobj=hostile, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../../escaped"), io.BytesIO())
    served.body = hostile.getvalue()
    with pytest.raises(HistoryError, match="incomplete"):
        fetch(served.url, Access(), lambda told: None)


@pytest.mark.parametrize("size", [0, 700, 6000])
def test_a_connection_that_breaks_is_said(served: Served, tmp_path: Path, size: int) -> None:
    files.write(tmp_path / "h", history(pods({}), nodes(8)))
    whole = b"".join(files.archive(files.opened(tmp_path / "h")))
    served.body, served.num_missing = whole[:size], len(whole)
    with pytest.raises(HistoryError, match="incomplete"):
        fetch(served.url, Access(), lambda told: None)
