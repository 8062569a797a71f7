"""Metrics of the history that is kept."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from extender.metrics.registry import counter, gauge
from extender.recording import Recorder


def history_metrics(recorder: Recorder) -> Iterator[Metric]:
    """What is written, and what was lost."""
    writer = recorder.writer
    yield counter("kerf_history_lines", "Lines written to the history since the start.", writer.num_written)
    lost = writer.num_lost + recorder.num_unwritten
    yield counter("kerf_history_lines_lost", "Lines of the history lost for want of room.", lost)
    yield counter("kerf_history_rolls", "Times that Parquet was made of what was written.", writer.num_rolls)
    yield gauge("kerf_history_bytes", "Size of the history's folder, in bytes.", writer.num_bytes)
    yield gauge("kerf_history_fault", "1 if the history can't be kept.", bool(writer.fault))
