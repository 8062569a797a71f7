"""Traces, sent to a real receiver of OTLP over HTTP; and that nothing of them is there when they are off."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from extender.parts.traces.settings import TraceSettings
from extender.settings import tree
from extender.settings.parts import Part
from extender.settings.section import Section
from tests.api import bodies
from tests.api.bodies import pod
from tests.api.services import running

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Its address, and what it has received."""
    received: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", received
        finally:
            server.shutdown()
            thread.join()


def spans(received: list[ExportTraceServiceRequest]) -> list[Any]:
    return [
        span
        for request in received
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def test_verbs_are_spans() -> None:
    with collector() as (endpoint, received):
        with running(traces__endpoint=endpoint, traces__sampled_frac=0) as kerf:
            kerf.filter(pod(gpus=1), ["t4-0"])
        assert spans(received) == []
        with running(traces__endpoint=endpoint, traces__service="gpu-scheduler") as kerf:
            kerf.filter(pod(gpus=1), ["t4-0"])
            body = bodies.args(pod("other", gpus=1), ["t4-0"])
            kerf.post("/prioritize", body, {"traceparent": f"00-{TRACE}-{PARENT}-01"})
            kerf.stop_mirror()
            kerf.clock.now += 1000
            assert kerf.post("/prioritize", body).status == 503
            kerf.get("/version")
        # Everything is sent by the end of the service.
        found = spans(received)
    assert [span.name for span in found] == ["filter", "prioritize", "prioritize"]
    attributes = [{item.key: item.value for item in span.attributes} for span in found]
    assert [values["http.response.status_code"].int_value for values in attributes] == [200, 200, 503]
    assert attributes[0]["url.path"].string_value == "/filter"
    assert (found[1].trace_id.hex(), found[1].parent_span_id.hex()) == (TRACE, PARENT)
    assert [span.status.code for span in found] == [0, 0, 2]
    assert all(span.end_time_unix_nano > span.start_time_unix_nano for span in found)
    resource = {item.key: item.value.string_value for item in received[0].resource_spans[0].resource.attributes}
    assert resource["service.name"] == "gpu-scheduler"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_collector_that_is_not_there_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.parts.traces.part._TIMEOUT_S", 0.5)  # for so long it is tried again at the end
    with running(traces__endpoint="http://127.0.0.1:9") as kerf:
        assert kerf.filter(pod(gpus=1), ["t4-0"])["Error"] == ""


@pytest.mark.slow
def test_without_the_extra_it_is_said_so() -> None:
    code = (
        "import sys; sys.modules['opentelemetry.sdk.trace'] = None; from extender.cli.main import app; "
        "app(['demo', '--port', '0', '--set', 'traces.endpoint=http://127.0.0.1:9'])"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "pip install 'kerf[otel]'" in ended.stderr


def test_calls_are_traced_also_where_one_part_is_all_that_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Part(name="acme", settings=Section, wanted=lambda _: True, module="", alone=lambda _: True)
    monkeypatch.setattr(tree, "PARTS", (*tree.PARTS, one))
    parts = {part.name: part.settings() for part in tree.PARTS} | {"traces": TraceSettings(endpoint="http://c")}
    settings: Any = SimpleNamespace(**parts)
    assert tree.alone(settings) is one
    assert [part.name for part in tree.wanted_parts(settings)] == ["traces", "acme"]
