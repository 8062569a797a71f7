"""Keeps the history of the cluster while Kerf leads: what the watches tell of pods and nodes, written down in batches.

Nothing here is on the path of a request, and no request waits for it. A pod is put into words when it first comes, has
its node, and is gone; the rest of its life tells nothing new. Where there is no room to write, lines are lost and
counted: that is never a reason not to serve.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from extender.core.clusters import Cluster
from extender.history import journals
from extender.history.journals import Line, Row
from extender.kube import objects
from extender.kube.background import Background, repeat
from extender.kube.watches.feeds import PODS, WatchHub
from extender.recording.pod_rows import PodRows, node_rows
from extender.recording.writer import Writer

_MAX_LINES: Final = 200_000
"""That wait to be written, some 60 MB."""
_MAX_PENDING: Final = 20_000
"""Pods without a node that are remembered."""


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
        self._listed_all = False
        """Whether there was a whole list since the start."""
        self._bound: dict[str, bytes] = {}
        """Lines of the pods with a node, by UID; known also while others lead: a term begins without a new list where
        nobody else has led in between."""
        self._pending: dict[str, bytes] = {}
        """Of those without one, likewise."""
        self._nodes: Mapping[str, Row] = {}
        self._seen: Cluster | None = None
        hub.cache(PODS).subscribe(self.changed, listed=self._listed)

    # What the watch tells

    def changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """A pod was added, has changed or is gone."""
        leads = self._leading()
        if new is not None:
            known = self._bound if new.spec.node_name else self._pending
            if new.metadata.uid not in known and (known is self._bound or len(known) < _MAX_PENDING):
                self._come(new, known, leads=leads)
        elif old is not None:
            was_known = self._pending.pop(old.metadata.uid, None) or self._bound.pop(old.metadata.uid, None)
            if was_known and leads:
                self._tell(journals.Ended(old.metadata.uid, self._wall_clock()))

    def _come(self, pod: objects.Pod, known: dict[str, bytes], *, leads: bool) -> None:
        """A pod waits for a node, or has one; what was told of it stands while what it asks can't be understood."""
        uid = pod.metadata.uid
        if row := self._row(pod):
            self._pending.pop(uid, None)
            known[uid] = journals.encode(journals.Pod(row))
            if leads:
                self._put(known[uid])

    def _listed(self, uids: set[str], began: float) -> None:
        """All pods are known."""
        self._listed_all = True

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
            await self._tell_nodes(now)
            whole = self._listed_all and not self._complete
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
