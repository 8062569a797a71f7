"""Histories fetched from a running Kerf."""

import io
import tarfile
from pathlib import Path

import pytest

from extender.history import files
from extender.history.records import History, HistoryError
from model.workloads.prometheus.client import Access
from model.workloads.served_histories import fetch
from tests.history.builders import history, nodes, pods
from tests.model.builders import CutOff
from tests.telemetry.servers import serving


def archive(folder: Path, kept: History) -> bytes:
    files.write(folder, kept)
    return b"".join(files.archive(files.opened(folder)))


def refused(status: int, body: bytes, reason: str) -> None:
    with serving(lambda *_: (status, body)) as server, pytest.raises(HistoryError, match=reason):
        fetch(server.url, Access(), lambda told: None)


def test_what_is_served_is_what_is_read(tmp_path: Path) -> None:
    kept = history(pods({"owner": "a/Job/x"}, {"gpus": 4}), nodes(8))
    body = archive(tmp_path / "h", kept)
    (tmp_path / "token").write_text("sesame\n")
    with serving(lambda *_: (200, body)) as server:
        found = fetch(f"{server.url}/", Access(token_file=tmp_path / "token"), lambda told: None)
    assert found.about == kept.about
    assert found.pods["owner"].tolist() == ["a/Job/x", ""]
    assert [(path, headers["Authorization"]) for path, _, headers in server.asked] == [("/history", "Bearer sesame")]


def test_faults_say_what_to_do() -> None:
    refused(404, b'{"detail": "no history is recorded (setting history.path)"}', "404: no history is recorded")
    refused(404, b"<html>", "does not answer as Kerf: check --server")
    refused(401, b"", "a token is required: --token-file")
    refused(403, b"", "kubectl port-forward")
    refused(200, b"x" * 2000, "history is incomplete")
    for url, reason in (("http://127.0.0.1:9", r"no connection: .* check --server"), ("localhost:8888", "write a URL")):
        with pytest.raises(HistoryError, match=reason):
            fetch(url, Access(), lambda told: None)


def test_what_was_cut_short_is_not_taken_for_all(tmp_path: Path) -> None:
    body = archive(tmp_path / "h", history(pods({}), nodes(8)))
    for size in (0, 700, 6000):
        refused(200, CutOff(body[:size]), "incomplete")
        refused(200, body[:size], "incomplete")


def test_no_file_of_an_archive_leaves_its_folder() -> None:
    hostile = io.BytesIO()
    with tarfile.open(fileobj=hostile, mode="w") as written:
        written.addfile(tarfile.TarInfo("../../escaped"), io.BytesIO())
    refused(200, hostile.getvalue(), "incomplete")
