"""Keeps the history of the cluster while Kerf leads: what the watches tell of pods and nodes, written down in batches.

Nothing here is on the path of a request, and no request waits for it. A pod is put into words when it first comes, has
its node, and is gone; the rest of its life tells nothing new. Where there is no room to write, lines are lost and
counted: that is never a reason not to serve.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import Cluster
from extender.history import journals
from extender.history.journals import Line, Row
from extender.kube import objects
from extender.kube.background import Background, repeat
from extender.kube.watches.feeds import BOUND_PODS, PENDING_PODS, WatchHub
from extender.recording.pod_rows import PodRows, node_rows
from extender.recording.writer import Writer

_MAX_LINES: Final = 200_000
"""That wait to be written, some 60 MB."""
_MAX_PENDING: Final = 20_000
"""Pods without a node that are remembered."""
_BOUND_BY_NOW_S: Final = 120.0
"""After which a pod that left those without a node, and has not come to those with one, was deleted."""


class Recorder(Background):
    """Runs from `start` to `stop`; records while this process leads."""

    def __init__(
        self,
        writer: Writer,
        interval_s: float,
        hub: WatchHub,
        rows_by: Callable[[bytes | None], PodRows],
        snapshot: Callable[[], Cluster],
        standby: Callable[[], str],
        wall_clock: Callable[[], float],
    ) -> None:
        """`rows_by` takes the salt that names are hashed with, None where they are not."""
        super().__init__("history", needed=False)
        self.writer, self._interval_s = writer, interval_s
        self._rows_by, self._snapshot, self._standby, self._wall_clock = rows_by, snapshot, standby, wall_clock
        self._rows: PodRows | None = None
        self.num_unwritten = 0
        """Lines lost because too many waited."""
        self._lines: list[bytes] = []
        self._writing = asyncio.Lock()
        self._leads = False
        self._complete = False
        self._lost = False
        """Whether lines were since all was told: it is told anew once there is room again."""
        self._kept: set[str] = set()
        """Of whom there was a whole list since the start."""
        self._bound: dict[str, bytes] = {}
        """Lines of the pods with a node, by UID; known also while others lead: a term begins without a new list where
        nobody else has led in between."""
        self._pending: dict[str, bytes] = {}
        """Of those without one, likewise."""
        self._left: dict[str, float] = {}
        """When pods left those without a node."""
        self._nodes: Mapping[str, Row] = {}
        self._seen: Cluster | None = None
        hub.subscribe(BOUND_PODS, _Heard(self.bound, self.ended, self.bound_kept))
        hub.subscribe(PENDING_PODS, _Heard(self.pending, self.pending_left, self.pending_kept))

    # What the watches tell

    def bound(self, pod: objects.Pod) -> None:
        """A pod has a node."""
        uid, leads = pod.metadata.uid, self._leading()
        if uid in self._bound or not pod.spec.node_name:
            return
        self._pending.pop(uid, None)
        self._left.pop(uid, None)
        if row := self._row(pod):
            self._bound[uid] = journals.encode(journals.Pod(row))
            if leads:
                self._put(self._bound[uid])

    def ended(self, uid: str) -> None:
        """A pod with a node is gone, or has finished."""
        if self._bound.pop(uid, None) and self._leading():
            self._tell(journals.Ended(uid, self._wall_clock()))

    def bound_kept(self, listed: set[str]) -> None:
        """Pods with a node that a complete list does not name are gone."""
        for uid in self._bound.keys() - listed:
            self.ended(uid)
        self._kept.add(BOUND_PODS.name)

    def pending(self, pod: objects.Pod) -> None:
        """A pod waits for a node."""
        uid, leads = pod.metadata.uid, self._leading()
        if uid in self._pending or pod.spec.node_name or len(self._pending) >= _MAX_PENDING:
            return
        if row := self._row(pod):
            self._pending[uid] = journals.encode(journals.Pod(row))
            if leads:
                self._put(self._pending[uid])

    def pending_left(self, uid: str) -> None:
        """A pod without a node has one now, or is gone."""
        if self._pending.pop(uid, None) and self._leading():
            self._left[uid] = self._wall_clock()

    def pending_kept(self, listed: set[str]) -> None:
        """Pods without a node that a complete list does not name have one now, or are gone."""
        for uid in self._pending.keys() - listed:
            self.pending_left(uid)
        self._kept.add(PENDING_PODS.name)

    # What is written

    def start(self) -> None:
        """Begin, in the running event loop."""
        super().start()
        self.tasks.begin("history's columns", self._roll, needed=False)

    async def run(self) -> None:
        try:
            await repeat(self.round, self._interval_s, "writing the history")
        finally:
            self.writer.write(self._taken())  # on the way out: what is known by now

    async def _roll(self) -> None:
        await repeat(self.roll, self._interval_s, "making columns of the history")

    async def round(self) -> None:
        """Write what came since the last time."""
        now = self._wall_clock()
        if self._leading():
            for uid in [uid for uid, at in self._left.items() if now - at > _BOUND_BY_NOW_S]:
                self._tell(journals.Ended(uid, self._left.pop(uid)))
            await self._tell_nodes(now)
            whole = self._kept == {BOUND_PODS.name, PENDING_PODS.name} and not self._complete
            self._tell(journals.Complete(now) if whole else journals.Until(now))
            self._complete |= whole
        async with self._writing:
            written = await asyncio.to_thread(self.writer.write, self._taken())
        if self._lost and written:
            self._leads = False  # as a term begins
        self._lost = not written

    async def roll(self) -> None:
        """Make columns of what is written, if it is time; until all is told that there is, journals stay together."""
        if not self._leads:
            return
        if self._complete and self.writer.due:
            async with self._writing:
                await asyncio.to_thread(self.writer.begin)
            self._lost |= await self.writer.roll()
        elif self.writer.overflows:
            async with self._writing:
                await asyncio.to_thread(self.writer.give_up)

    def _leading(self) -> bool:
        """Whether this process leads; a term begins with all that is known."""
        leads = not self._standby()
        if leads and not self._leads:
            self._left.clear()
            self._complete, self._nodes, self._seen, self._leads = False, {}, None, True
            self.writer.anew = True  # what others have written meanwhile was before
            self._tell(journals.Begun(self._wall_clock()))
            self._lines += [*self._bound.values(), *self._pending.values()]
        self._leads = leads
        return leads

    def _row(self, pod: objects.Pod) -> Row | None:
        if self._rows is None:
            try:
                self._rows = self._rows_by(self.writer.salt())
            except OSError as error:
                self.writer.complain("salt", f"names can't be hashed: {error}")
                return None
        return self._rows.row(pod, self._wall_clock())

    async def _tell_nodes(self, now: float) -> None:
        cluster, seen = self._snapshot(), self._seen
        if seen is not None and cluster.row_of is seen.row_of and _alike(cluster, seen):
            return
        found = await asyncio.to_thread(node_rows, cluster)
        self._seen = cluster
        for name, row in found.items():
            if self._nodes.get(name) != row:
                self._tell(journals.Node(row, now))
        for name in self._nodes.keys() - found.keys():
            self._tell(journals.Gone(name, now))
        self._nodes = found

    def _tell(self, line: Line) -> None:
        self._put(journals.encode(line))

    def _put(self, line: bytes) -> None:
        if len(self._lines) >= _MAX_LINES:
            self.num_unwritten += 1
        else:
            self._lines.append(line)

    def _taken(self) -> list[bytes]:
        """What waits to be written; it is written once, or lost."""
        lines, self._lines = self._lines, []
        return lines


def _alike(one: Cluster, other: Cluster) -> bool:
    """Whether the nodes of two clusters with the same rows are the same."""
    columns = ("gpu_model", "gpu_memory_mib", "cpu_milli", "memory_mib")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)


@dataclass(frozen=True, slots=True)
class _Heard:
    """A sink of pods that tells others what it hears."""

    changed: Callable[[objects.Pod], None]
    gone: Callable[[str], None]
    kept: Callable[[set[str]], None]

    def upsert(self, item: objects.Pod) -> None:
        self.changed(item)

    def remove(self, item: objects.Pod) -> None:
        self.gone(item.metadata.uid)

    def keep(self, items: set[str], list_began: float) -> None:
        self.kept(items)
