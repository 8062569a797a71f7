"""OpenTelemetry traces of kube-scheduler's requests, sent by OTLP over HTTP. Imports the extra `kerf[otel]` if used."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from extender import __version__
from extender.api.contributions import Contribution, Kernel, PartError
from extender.parts.traces.settings import TraceSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_FIRST_OF_FAULTS: Final = 500
_TIMEOUT_S: Final = 5.0
"""Timeout of an export; spans that can't be sent are lost."""


def build(kernel: Kernel, wanted: TraceSettings) -> Contribution:
    """A span for each call of a verb."""
    traces = _Traces(wanted)
    return Contribution(work=[traces], around=traces.around)


class _Traces:
    """Creates spans and sends them in a separate thread, from `start` to `stop`."""

    def __init__(self, settings: TraceSettings) -> None:
        self._settings = settings
        self._provider: TracerProvider | None = None

    def start(self) -> None:
        """Start sending. Raises PartError."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
        except ImportError as error:
            raise PartError(f"traces.endpoint needs the extra: pip install 'kerf[otel]' ({error})") from error
        resource = Resource.create({"service.name": self._settings.service, "service.version": __version__})
        sampler = ParentBasedTraceIdRatio(self._settings.sampled_frac)
        self._provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(f"{self._settings.endpoint.rstrip('/')}/v1/traces", timeout=_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))

    async def stop(self) -> None:
        """Send the remaining spans, and stop."""
        if self._provider is not None:
            await asyncio.to_thread(self._provider.shutdown)

    def around(self, verbs: Mapping[str, ASGIApp]) -> Mapping[str, ASGIApp]:
        """The endpoints by path, wrapped so that calls become spans."""
        return {path: self._around(path.strip("/"), endpoint) for path, endpoint in verbs.items()}

    def _around(self, verb: str, endpoint: ASGIApp) -> ASGIApp:
        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if self._provider is None:  # not started yet
                await endpoint(scope, receive, send)
                return
            await _traced(self._provider, verb, endpoint, (scope, receive, send))

        return traced


async def _traced(provider: TracerProvider, verb: str, endpoint: ASGIApp, call: tuple[Scope, Receive, Send]) -> None:
    """Serve a call within a server span, a child of the caller's span if it names one."""
    from opentelemetry.trace import SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    scope, receive, send = call
    carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    parent = TraceContextTextMapPropagator().extract(carrier)
    attributes: dict[str, Any] = {"http.request.method": scope["method"], "url.path": scope["path"]}
    tracer = provider.get_tracer("kerf", __version__)
    with tracer.start_as_current_span(verb, parent, SpanKind.SERVER, attributes) as span:

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.set_attribute("http.response.status_code", message["status"])
                if message["status"] >= _FIRST_OF_FAULTS:
                    span.set_status(StatusCode.ERROR)
            await send(message)

        await endpoint(scope, receive, send_on)
