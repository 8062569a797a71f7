"""Settings of the traces part."""

from typing import Final

from pydantic import Field, field_validator

from extender.settings.parts import Part
from extender.settings.section import Section, without_user


class TraceSettings(Section):
    """OpenTelemetry traces of kube-scheduler's requests; needs the extra `kerf[otel]`: see
    docs/guides/operations.md."""

    GONE = {
        "timeout_s": "always 5",
    }

    endpoint: str = ""
    """OTLP/HTTP endpoint, such as http://otel-collector.monitoring.svc:4318; empty: no traces."""
    service: str = "kerf"
    """Service name in the traces."""
    sampled_frac: float = Field(default=1.0, ge=0, le=1)
    """Fraction of requests traced, unless the caller's trace context decides."""

    @field_validator("endpoint")
    @classmethod
    def _web_address(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("write an address such as http://otel-collector.monitoring.svc:4318")
        return without_user(url)


PART: Final = Part(
    name="traces",
    settings=TraceSettings,
    wanted=lambda traces: bool(traces.endpoint),
    module="extender.parts.traces.part",
    beside_one_alone=True,
)
