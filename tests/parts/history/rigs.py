"""A recorder beside watches that tell what a test says, on a clock that is told the time."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from extender.core.clusters import Cluster
from extender.history import files, rolling
from extender.history.records import History, HistoryError
from extender.history.rolling import _roll
from extender.kube.memory import MemoryCluster
from extender.kube.watches import PODS, WatchHub
from extender.ledger.ledger import Ledger
from extender.parts.history.recorder import PodRows, Recorder, Writer
from extender.parts.history.settings import HistorySettings
from extender.queueing.pods.batches import gang_of
from tests.ledger.builders import pod_object

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

    def runs(self, *names: str) -> None:
        """Pods of one GPU are on node n."""
        for name in names:
            self.pods.upsert(pod_object(name, 1, node="n"))

    def ends(self, name: str) -> None:
        self.pods.remove(pod_object(name, 1, node="n"))

    def cluster(self) -> Cluster:
        return self.ledger.snapshot(self.now)

    def listed(self, *pods: set[str]) -> None:
        """A complete list names these pods."""
        self.pods.retain_only({f"uid-{name}" for name in set().union(*pods)}, 0.0)

    def write(self, after_s: float = 0.0) -> None:
        self.now += after_s
        asyncio.run(self.recorder.round())

    def history(self) -> History:
        return files.read(self.directory)

    def roll(self, max_bytes: int = MIB) -> None:
        self.recorder.writer.begin()
        _roll(self.directory, self.recorder.writer._journal.name, max_bytes)  # noqa: SLF001


class Rolling:
    """Stands in for the process that makes columns, and does as that one does."""

    def __init__(self, directory: str, max_bytes: str, active: str) -> None:
        self._told = Path(directory), active, int(max_bytes)

    @classmethod
    async def start(cls, *command: str, complaints: bool) -> "Rolling":
        assert command[:3] == (sys.executable, "-m", rolling.__name__) and complaints
        return cls(*command[3:])

    async def finished(self) -> tuple[int, bytes, str]:
        try:
            return 0, "".join(f"{fault}\n" for fault in _roll(*self._told)).encode(), ""
        except (HistoryError, ImportError, OSError) as error:
            return 1, b"", str(error)

    async def end(self) -> None:
        """There is nothing to end."""


def column(history: History, name: str) -> dict[str, Any]:
    return dict(zip(history.pods["pod"].tolist(), history.pods[name].tolist(), strict=True))
