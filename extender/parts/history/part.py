"""Assembles the history part: the recorder, its metrics and the route to download the history."""

import asyncio
import time
from collections.abc import Iterator

from fastapi import HTTPException, Response
from fastapi.responses import StreamingResponse
from prometheus_client.core import Metric

from extender.api.contributions import Contribution, Kernel
from extender.api.reads import Reads
from extender.history import files
from extender.metrics.registry import counter, gauge
from extender.parts.history.recorder import PodRows, Recorder, Writer
from extender.parts.history.settings import HistorySettings
from extender.queueing.pods.batches import gang_of


def build(kernel: Kernel, wanted: HistorySettings) -> Contribution:
    """A recorder of the watched pods and nodes that writes to `wanted.path`."""
    base = kernel.base
    ledger, clock = base.ledger, base.clock
    if wanted.path is None:
        raise ValueError("history.path is empty")

    def rows_by(salt: bytes | None) -> PodRows:
        return PodRows(ledger.read_request, gang_of, lambda: ledger.snapshot(clock()).models, salt)

    recorder = Recorder(
        Writer(wanted.path, wanted, time.time),
        wanted.flush_s,
        base.mirror.hub,
        rows_by,
        lambda: ledger.snapshot(clock()),
        base.fence.standby,
        time.time,
    )

    def routes(reads: Reads) -> None:
        @reads.get(
            "/history",
            {200: "A tar archive of the folder.", 404: "Another replica leads."},
            tag="operation",
            needs_sync=False,
            form="application/x-tar",
        )
        async def history() -> Response:
            """The recorded history, for kerf history --server: pods and nodes as Parquet, and newer journals."""
            if why_not := base.fence.standby():
                raise HTTPException(404, why_not)
            opened = await asyncio.to_thread(files.opened, recorder.writer.directory)
            return StreamingResponse(files.archive(opened), media_type="application/x-tar")

    return Contribution(
        work=[recorder],
        metrics=lambda: _metrics(recorder),
        routes=routes,
        fault=lambda: recorder.writer.fault,
    )


def _metrics(recorder: Recorder) -> Iterator[Metric]:
    """Lines written and lost, conversions to Parquet, size and faults."""
    writer = recorder.writer
    yield counter("kerf_history_lines", "Lines written to the history since the start.", writer.num_written)
    lost = writer.num_lost + recorder.num_unwritten
    yield counter("kerf_history_lines_lost", "Lines of the history lost for lack of space.", lost)
    yield counter("kerf_history_rolls", "Conversions of journals to Parquet.", writer.num_rolls)
    yield gauge("kerf_history_bytes", "Size of the history's folder, in bytes.", writer.num_bytes)
    yield gauge("kerf_history_fault", "1 if the history can't be written.", bool(writer.fault))
