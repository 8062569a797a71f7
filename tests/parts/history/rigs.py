"""A recorder beside watches that tell what a test says, on a clock that is told the time."""

import asyncio
from pathlib import Path
from typing import Any

from extender.core.clusters import Cluster
from extender.history import files
from extender.history.records import History
from extender.history.rolling import _roll
from extender.kube.memory import MemoryCluster
from extender.kube.watches import PODS, WatchHub
from extender.ledger.ledger import Ledger
from extender.parts.history.recorder import PodRows, Recorder, Writer
from extender.parts.history.settings import HistorySettings
from extender.queueing.pods.batches import gang_of

MIB = 2**20


class Rig:
    """A Kerf that records, on a clock that is told the time."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.now = 1_000_000.0
        self.others = ""
        self.ledger = Ledger(reservation_ttl_s=30.0)
        self.settings = HistorySettings(path=directory, **settings)
        self.begin()

    def begin(self) -> None:
        """A process begins."""
        hub = WatchHub(MemoryCluster(), lambda: self.now)
        self.pods = hub.cache(PODS)
        self.recorder = Recorder(
            Writer(self.directory, self.settings, lambda: self.now), 15.0, hub,
            lambda salt: PodRows(self.ledger.read_request, gang_of, lambda: self.cluster().models, salt),
            self.cluster, lambda: self.others, lambda: self.now,
        )  # fmt: skip

    def cluster(self) -> Cluster:
        return self.ledger.snapshot(self.now)

    def listed(self, *pods: set[str]) -> None:
        """A complete list names these pods."""
        self.pods.keep({f"uid-{name}" for name in set().union(*pods)}, 0.0)

    def write(self, after_s: float = 0.0) -> None:
        self.now += after_s
        asyncio.run(self.recorder.round())

    def history(self) -> History:
        return files.read(self.directory)

    def roll(self, max_bytes: int = MIB) -> None:
        self.recorder.writer.begin()
        _roll(self.directory, self.recorder.writer._journal.name, max_bytes)  # noqa: SLF001


def column(history: History, name: str) -> dict[str, Any]:
    return dict(zip(history.pods["pod"].tolist(), history.pods[name].tolist(), strict=True))
