"""`kerf traces fetch`: public traces from a server on loopback: complete and right, or not there, and with a reason."""

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from model.cli.traces import traces_app
from model.workloads.published import PHILLY, PHILLY_PART, TRACES, FetchError, PublishedTrace, TraceFile, fetch

LINES = b"timestamp,duration,num_gpus,gpu_time,cluster\n2017-09-04 10:30:41,2.0,8,16.0,7f04ca\n"
LATER = b"2017-11-04 10:30:41,2.0,8,16.0,7f04ca\n,2.0,8,16.0,7f04ca\n"
CONTENT = LINES + LATER


class _Quiet(SimpleHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path.endswith("cut.csv"):  # ends before what it has said
            self.send_response(200)
            self.send_header("content-length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[:10])
            return
        super().do_GET()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """A folder with a file."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    (folder / PHILLY).write_bytes(CONTENT)
    return folder


@pytest.fixture
def address(mirror: Path) -> Iterator[str]:
    """Where the folder is served."""
    _Quiet.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(mirror)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def trace(name: str = PHILLY, content: bytes = CONTENT) -> PublishedTrace:
    file = TraceFile(name, "http://127.0.0.1:1", len(content), hashlib.sha256(content).hexdigest())
    return PublishedTrace((file,), "nobody's")


def fetched(into: Path, wanted: PublishedTrace, source: str | None) -> list[Path]:
    return fetch("philly", wanted, into, source, lambda step: None)


def test_a_file_is_fetched_checked_and_not_fetched_again(tmp_path: Path, address: str) -> None:
    first = fetched(tmp_path, trace(), f"{address}/")
    assert [path.name for path in first] == [PHILLY, PHILLY_PART]
    assert first[0].read_bytes() == CONTENT
    assert first[1].read_bytes() == LINES, "the months of the figures, without the line that has no time"
    assert fetched(tmp_path, trace(), address) == first
    assert _Quiet.asked == [f"/{PHILLY}"]
    first[0].write_bytes(CONTENT[:-1] + b"x")
    assert fetched(tmp_path, trace(), address)[0].read_bytes() == CONTENT
    assert len(_Quiet.asked) == 2


def test_a_folder_will_do(tmp_path: Path, mirror: Path) -> None:
    assert fetched(tmp_path, trace(), str(mirror))[0].read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        pytest.param(trace(content=b"y" * len(CONTENT)), "not the published file", id="another content"),
        pytest.param(trace(content=CONTENT[:-1]), "got more bytes", id="too much"),
        pytest.param(trace(content=CONTENT + b"z"), f", {len(CONTENT)} bytes)", id="too little"),
        pytest.param(trace("missing.csv"), "status 404", id="missing"),
        pytest.param(trace("cut.csv"), "can't be fetched", id="cut off"),
    ],
)
def test_what_is_not_the_file_leaves_nothing_behind(
    tmp_path: Path, address: str, wanted: PublishedTrace, said: str
) -> None:
    with pytest.raises(FetchError, match=said):
        fetched(tmp_path, wanted, address)
    assert list((tmp_path / "philly").iterdir()) == []


def test_a_file_that_was_there_stays_where_the_new_one_is_wrong(tmp_path: Path, address: str) -> None:
    fetched(tmp_path, trace(), address)
    with pytest.raises(FetchError):
        fetched(tmp_path, trace(content=b"other"), address)
    assert (tmp_path / "philly" / PHILLY).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("openb", "--from", "http://127.0.0.1:1"), 1, "can't be fetched (ConnectionError)"),
        (("openb", "--from", "ftp://example.com"), 2, "write a folder, or a URL with http:// or https://"),
        (("philly", "--from", "nowhere"), 1, "No such file or directory"),
        (("opena",), 2, "no trace 'opena'; there are openb, philly"),
    ],
)
def test_faults_end_the_command_with_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    result = CliRunner().invoke(traces_app, ["fetch", *arguments, "--out", str(tmp_path)])
    assert result.exit_code == status
    assert said in result.output
    assert "Traceback" not in result.output


def test_every_file_has_a_checksum_an_address_and_a_name_of_its_own() -> None:
    files = [file for published in TRACES.values() for file in published.files]
    assert len({file.name for file in files}) == len({file.sha256 for file in files}) == len(files)
    for file in files:
        assert len(file.sha256) == 64 and int(file.sha256, 16) and file.num_bytes < 4 << 20
        assert file.base.startswith("https://") and "/master/" not in file.base, "of a commit, not of a branch"
        assert "/" not in file.name and replace(file) == file
