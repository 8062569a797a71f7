"""Metrics of the certificate that the server shows: the API server and kube-scheduler stop calling when it ends."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.core import Metric

from extender.metrics.registry import gauge
from extender.server.validity import Validity


def certificate_metrics(path: Path) -> Iterator[Metric]:
    """How long it is good; nothing where it can't be read."""
    try:
        validity = Validity.of(path.read_bytes())
    except (OSError, ValueError):
        return
    left_s = validity.left_s(datetime.now(UTC))
    yield gauge("kerf_certificate_left_seconds", "Seconds until the server's certificate ends.", left_s)
    yield gauge("kerf_certificate_valid_seconds", "Seconds for which it was made, all together.", validity.valid_s)
