"""`kerf traces fetch`, from a server on loopback."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.workloads.published import PHILLY, PHILLY_PART, TRACES, FetchError, PublishedTrace, TraceFile, fetch
from tests.model.builders import CutOff
from tests.model.cli.calls import kerf
from tests.telemetry.servers import Server, serving

LINES = b"timestamp,duration,num_gpus,gpu_time,cluster\n2017-09-04 10:30:41,2.0,8,16.0,7f04ca\n"
LATER = b"2017-11-04 10:30:41,2.0,8,16.0,7f04ca\n,2.0,8,16.0,7f04ca\n"
CONTENT = LINES + LATER


@pytest.fixture
def mirror() -> Iterator[Server]:
    pages = {f"/{PHILLY}": (200, CONTENT), "/cut.csv": (200, CutOff(CONTENT[:10]))}
    with serving(lambda path, *_: pages.get(path, (404, b""))) as server:
        yield server


def trace(name: str = PHILLY, content: bytes = CONTENT) -> PublishedTrace:
    file = TraceFile(name, "http://127.0.0.1:1", len(content), hashlib.sha256(content).hexdigest())
    return PublishedTrace((file,), "nobody's")


def fetched(into: Path, wanted: PublishedTrace, source: str | None) -> list[Path]:
    return fetch("philly", wanted, into, source, lambda step: None)


def test_a_file_is_fetched_checked_and_not_fetched_again(tmp_path: Path, mirror: Server) -> None:
    first = fetched(tmp_path, trace(), f"{mirror.url}/")
    assert [path.name for path in first] == [PHILLY, PHILLY_PART]
    assert first[0].read_bytes() == CONTENT
    assert first[1].read_bytes() == LINES, "the months of the figures, without the line that has no time"
    assert fetched(tmp_path, trace(), mirror.url) == first
    assert [path for path, *_ in mirror.asked] == [f"/{PHILLY}"]
    first[0].write_bytes(CONTENT[:-1] + b"x")
    assert fetched(tmp_path, trace(), mirror.url)[0].read_bytes() == CONTENT
    assert len(mirror.asked) == 2
    assert fetched(tmp_path / "other", trace(), str(tmp_path / "philly"))[0].read_bytes() == CONTENT


def test_what_is_not_the_file_leaves_all_as_it_was(tmp_path: Path, mirror: Server) -> None:
    for wanted, said in (
        (trace(content=b"y" * len(CONTENT)), "not the published file"),
        (trace(content=CONTENT[:-1]), "got more bytes"),
        (trace(content=CONTENT + b"z"), rf", {len(CONTENT)} bytes\)"),
        (trace("missing.csv"), "status 404"),
        (trace("cut.csv"), "can't be fetched"),
    ):
        with pytest.raises(FetchError, match=said):
            fetched(tmp_path, wanted, mirror.url)
        assert list((tmp_path / "philly").iterdir()) == []
    fetched(tmp_path, trace(), mirror.url)
    with pytest.raises(FetchError):
        fetched(tmp_path, trace(content=b"other"), mirror.url)
    assert (tmp_path / "philly" / PHILLY).read_bytes() == CONTENT


def test_faults_end_the_command_with_a_sentence(tmp_path: Path) -> None:
    for arguments, status, said in (
        (("openb", "--from", "http://127.0.0.1:1"), 1, "can't be fetched (ConnectionError)"),
        (("openb", "--from", "ftp://example.com"), 2, "write a folder, or a URL with http:// or https://"),
        (("philly", "--from", "nowhere"), 1, "No such file or directory"),
        (("opena",), 2, "no trace 'opena'; there are openb, philly"),
    ):
        result = kerf("traces", "fetch", *arguments, "--out", tmp_path)
        assert result.exit_code == status and said in result.output and "Traceback" not in result.output


def test_every_file_has_a_checksum_an_address_and_a_name_of_its_own() -> None:
    files = [file for published in TRACES.values() for file in published.files]
    assert len({file.name for file in files}) == len({file.sha256 for file in files}) == len(files)
    for file in files:
        assert len(file.sha256) == 64 and int(file.sha256, 16) and file.num_bytes < 4 << 20
        assert file.base.startswith("https://") and "/master/" not in file.base, "of a commit, not of a branch"
        assert "/" not in file.name
