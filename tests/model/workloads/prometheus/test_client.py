"""The client of a Prometheus: faults as one line that says what to do, credentials, retries."""

import json
from pathlib import Path

import pytest
from urllib3.util.retry import Retry

from model.workloads.prometheus.client import Access, Prometheus, PrometheusError, TooMuchError
from tests.controlplane.processes import free_port
from tests.telemetry.servers import Answer, serving

VECTOR = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}}).encode()


def fault(url: str, access: Access = Access()) -> PrometheusError:  # noqa: B008 - frozen
    client = Prometheus(url, access)
    try:
        with pytest.raises(PrometheusError) as caught:
            client.instant("up", 7.0)
    finally:
        client.close()
    assert "\n" not in str(caught.value)
    return caught.value


def answering(status: int, body: bytes) -> Answer:
    return lambda *_: (status, body)


def test_what_is_refused_is_said_with_what_to_do() -> None:
    answers = [
        (401, b"", "HTTP status 401: authentication is required: --token-file or --basic-auth-file"),
        (403, b"<html>", "HTTP status 403: the credentials have no read access"),
        (404, b"404 page not found", "HTTP status 404: there is no Prometheus API at this URL"),
        (400, b'{"status":"error","error":"parse error"}', "HTTP status 400: parse error: --match must be"),
        (500, b'{"status":"error","error":"disk"}', "HTTP status 500: disk: try again"),
        (200, b"<html>", "does not answer as Prometheus: check --prometheus"),
        (200, b"{}", "does not answer as Prometheus"),
    ]
    for status, body, words in answers:
        with serving(answering(status, body)) as server:
            told = fault(server.url)
        assert words in str(told) and server.url in str(told) and not isinstance(told, TooMuchError)
    body = b'{"status":"error","error":"query processing would load too many samples into memory"}'
    for status in (422, 503):
        with serving(answering(status, body)) as server:
            told = fault(server.url)
        assert isinstance(told, TooMuchError)
        assert "too many samples" in str(told) and "a shorter --since" in str(told)


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(Retry, "sleep", lambda retry, _=None: waited.append(retry.get_backoff_time()))
    assert "no connection: " in str(told := fault(f"http://127.0.0.1:{free_port()}"))
    assert "check --prometheus" in str(told) and "object at" not in str(told)
    assert waited == [0, 2, 4]
    for url in ("localhost:9090", "prometheus", "ftp://a", "http://"):
        with pytest.raises(PrometheusError, match="write a URL such as"):
            Prometheus(url, Access())


def test_who_asks(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    (tmp_path / "basic").write_text("user:pass:word\n")
    with serving(lambda *_: (200, VECTOR)) as server:
        for access, url in (
            (Access(token_file=tmp_path / "token"), server.url),
            (Access(basic_auth_file=tmp_path / "basic"), server.url),
            (Access(), server.url.replace("http://", "http://user:pass%3Aword@")),
            (Access(), server.url + "/"),
        ):
            client = Prometheus(url, access)
            assert client.instant("up", 7.0) == []
            client.close()
            assert "pass" not in client.url
    told = [headers.get("Authorization") for _, _, headers in server.asked]
    assert told == ["Bearer abc", "Basic dXNlcjpwYXNzOndvcmQ=", "Basic dXNlcjpwYXNzOndvcmQ=", None]
    assert [(path, query) for path, query, _ in server.asked] == [("/api/v1/query", {"query": "up", "time": "7.0"})] * 4


def test_a_token_that_is_none_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sec\nret")
    told = str(fault("http://127.0.0.1:9", Access(token_file=tmp_path / "token")))
    assert "sec" not in told and "--token-file" in told


def test_it_tries_again_where_that_helps() -> None:
    answers = [(502, b""), (200, VECTOR)]
    with serving(lambda *_: answers.pop(0)) as server:
        client = Prometheus(server.url, Access())
        assert client.instant("up", None) == []
        client.close()
    assert answers == []
