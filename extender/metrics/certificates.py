"""Metrics of the server's certificate: once it expires, the API server and kube-scheduler stop calling."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.core import Metric

from extender.metrics.registry import gauge
from extender.server.validity import Validity


def certificate_metrics(path: Path) -> Iterator[Metric]:
    """The validity of a certificate; nothing if it can't be read."""
    try:
        validity = Validity.of(path.read_bytes())
    except (OSError, ValueError):
        return
    left_s = validity.left_s(datetime.now(UTC))
    yield gauge("kerf_certificate_left_seconds", "Seconds until the server's certificate expires.", left_s)
    yield gauge("kerf_certificate_valid_seconds", "Total validity of the certificate, in seconds.", validity.valid_s)
