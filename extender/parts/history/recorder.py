"""Keeps the history of the cluster while Kerf leads: what the watches tell of pods and nodes, written down in batches.

Nothing here is on the path of a request, and no request waits for it. A pod is put into words when it first comes, has
its node, and is gone; the rest of its life tells nothing new. Where there is no room to write, lines are lost and
counted: that is never a reason not to serve.

Pods and nodes as rows of a history.

The folder of a running Kerf's history: lines are appended to a journal, and columns made of journals aside.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from extender.children import Child
from extender.core.clusters import WHOLE_MILLI, Cluster
from extender.core.resources.gpu_models import GpuModel, models_allowed
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError
from extender.core.vendors.registry import SEVERAL
from extender.history import files, journals
from extender.history.journals import Line, Row
from extender.history.records import hash_name
from extender.kube import objects
from extender.kube.background import Background, repeat
from extender.kube.objects import unix_time
from extender.kube.watches import PODS, WatchHub
from extender.parts.history.settings import HistorySettings
from extender.plugins.kerf import assigned_gpus
from extender.plugins.pod_resources import read_compute
from extender.plugins.pods import owner_of
from extender.plugins.protocol import UnreadableError

logger = logging.getLogger(__name__)

_MAX_TEXT: Final = 512
_UNKNOWN: Final = "GPU"
"""A model of which nobody tells."""
_MOST: Final = 2**53
"""CPU and memory of a pod: columns have 64 bits, and who asks for more fits nowhere either."""


class PodRows:
    """Reads pods; what it is given to read them by is as the service does."""

    def __init__(
        self,
        read: Callable[[objects.Pod], PodRequest],
        gang_of: Callable[[objects.Pod], tuple[str, int]],
        models: Callable[[], tuple[GpuModel, ...]],
        salt: bytes | None,
    ) -> None:
        """`read` and `gang_of` raise RequestError; `models` are those that there are; names are hashed with a salt."""
        self._read, self._gang_of, self._models, self._salt = read, gang_of, models, salt

    def row(self, pod: objects.Pod, now: float) -> Row | None:
        """A pod as it is known now, in Unix time; None for what is not recorded (`files.about_of`)."""
        metadata = pod.metadata
        if metadata.belongs_to_a_node or not metadata.uid:
            return None
        try:
            asked = self._read(pod)
            gpus, priority = asked.gpus, asked.priority
        except RequestError:
            return None
        if gpus is not None and (gpus.mig or gpus.unit is AskedUnit.SHARED):
            return None
        cpu, memory = (asked.cpu_milli, asked.memory_mib) if gpus else read_compute(pod.spec)
        cpu, memory = min(cpu, _MOST), min(memory, _MOST)
        asks = (0, 0, 0, "")
        if gpus is not None:
            asks = max(gpus.count, 1), gpus.milli or WHOLE_MILLI, gpus.memory_each_mib, self._accepted(gpus)
        started = (unix_time(pod.status.start_time) or now) if pod.spec.node_name else None
        return (
            metadata.uid,
            *(self._name(text) for text in (metadata.namespace, owner_of(metadata), self._gang(pod))),
            *(priority or pod.spec.priority or 0, *asks, cpu, memory),
            *(unix_time(metadata.creation_timestamp) or now, started, now if pod.finished else None),
            *(pod.spec.node_name or "", _indices(pod)),
        )

    def _gang(self, pod: objects.Pod) -> str:
        try:
            return self._gang_of(pod)[0]
        except RequestError:
            return ""

    def _accepted(self, gpus: GpuRequest) -> str:
        """The models that will do; where there is none yet, what is asked for: no node has it."""
        if gpus.include is None and gpus.exclude is None and not SEVERAL:
            return ""
        models = self._models()
        allowed = np.flatnonzero(models_allowed(models, gpus.include, gpus.exclude, gpus.vendor)).tolist()
        names = [models[number].name for number in allowed if models[number].name]
        return "|".join(names)[:_MAX_TEXT] or (gpus.include.text[:_MAX_TEXT] if gpus.include else "none")

    def _name(self, text: str) -> str:
        return text[:_MAX_TEXT] if self._salt is None else hash_name(text, self._salt)


def _node_rows(cluster: Cluster) -> dict[str, Row]:
    """The nodes as they are, by name, without times; of several models on a node the one most of its GPUs have."""
    there = cluster.gpu_model >= 0
    num_gpus, memory = there.sum(axis=1).tolist(), cluster.gpu_memory_mib.max(axis=1, initial=0).tolist()
    cpu, main = cluster.cpu_milli.tolist(), cluster.memory_mib.tolist()
    found: dict[str, Row] = {}
    for name, row in cluster.row_of.items():
        model = ""
        if num_gpus[row]:
            model = cluster.models[int(np.bincount(cluster.gpu_model[row][there[row]]).argmax())].name or _UNKNOWN
        found[name] = (name, model, num_gpus[row], memory[row], cpu[row], main[row])
    return found


def _indices(pod: objects.Pod) -> str:
    try:
        return ",".join(map(str, assigned_gpus(pod.metadata.annotations or {})))
    except UnreadableError:
        return ""


_MOST_ROLL_S: Final = 900.0
_JOURNAL_FRAC: Final = 0.125
"""Of the room for pods: a journal that takes more is made columns of before it is time."""
_SALT_BYTES: Final = 32
_MAX_WORDS: Final = 300


class Writer:
    """Writes to a folder, which it makes."""

    def __init__(self, directory: Path, wanted: HistorySettings, wall_clock: Callable[[], float]) -> None:
        self.directory, self._wanted, self._wall_clock = directory, wanted, wall_clock
        self._faults: dict[str, str] = {}
        """Why nothing is written, no columns are made, or names can't be hashed."""
        self.num_written = 0
        """Lines since the start."""
        self.num_lost = 0
        """Lines lost for want of room."""
        self.num_rolls = 0
        """Times that columns were made."""
        self.num_bytes = 0
        """What the folder took when it was written to last."""
        self.anew = True
        """Whether the next lines begin another journal."""
        self._rolled_at = 0.0
        self._journal, self._journal_bytes = self.directory, 0
        self._cut = b""

    @property
    def fault(self) -> str:
        """What is wrong, "" for nothing."""
        return next(iter(self._faults.values()), "")

    def begin(self) -> None:
        """From now on another journal is written to, which comes after those that there are, whatever the clock says.

        Not for the event loop, as all that looks at the folder: a volume may hang.
        """
        last = max((path.name for path in self.directory.glob(journals.PATTERN)), default="")
        at = self._wall_clock()
        with contextlib.suppress(ValueError):
            at = max(at, float(last.split("-")[1]) + 0.001 if last else 0.0)
        name = f"journal-{at:017.3f}-{secrets.token_hex(4)}.jsonl"
        self._journal, self._journal_bytes, self.anew = self.directory / name, 0, False

    def salt(self) -> bytes | None:
        """The key that names are hashed with, made the first time; None where they are not. Raises OSError."""
        if not self._wanted.hash_names:
            return None
        path = self.directory / files.SALT
        if not path.exists() or path.stat().st_size != _SALT_BYTES:  # or cut short by a crash: it kept no secret
            self.directory.mkdir(parents=True, exist_ok=True)
            made = self.directory / f"{files.SALT}-{secrets.token_hex(4)}"
            made.touch(mode=0o600)
            made.write_bytes(secrets.token_bytes(_SALT_BYTES))
            made.replace(path)
        self._faults.pop("salt", None)
        return path.read_bytes()

    def write(self, lines: Sequence[bytes]) -> bool:
        """Append lines; whether they are on disk. Those that are not are lost."""
        if not lines:
            return True
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if self.anew:
                self.begin()
            with self._journal.open("ab") as journal:
                journal.write(self._cut + b"\n".join((*lines, b"")))
                journal.flush()
                os.fsync(journal.fileno())
        except OSError as error:
            self._cut = b"\n"  # what is there may end within a line
            self.num_lost += len(lines)
            self.complain("write", f"nothing is written to {self.directory}: {error.strerror}")
            return False
        self._cut = b""
        self._faults.pop("write", None)
        self.num_written += len(lines)
        self._journal_bytes += sum(map(len, lines)) + len(lines)
        self.num_bytes = self._size()
        return True

    @property
    def due(self) -> bool:
        """Whether it is time to make columns."""
        since_s = self._wall_clock() - self._rolled_at
        return not 0 <= since_s < self._wanted.roll_s or self._journal_bytes > _JOURNAL_FRAC * self._max_bytes

    @property
    def overflows(self) -> bool:
        """Whether a journal takes all the room that there is for pods."""
        return self._journal_bytes > self._max_bytes

    async def roll(self) -> bool:
        """Have columns made of all journals before the one that is begun; whether something was lost by it."""
        self._rolled_at = self._wall_clock()
        told = b""
        try:
            child = await Child.start(
                sys.executable,
                "-m",
                "extender.history.rolling",
                str(self.directory),
                str(self._max_bytes),
                self._journal.name,
                complaints=True,
            )
            try:
                async with asyncio.timeout(_MOST_ROLL_S):
                    code, told, complaint = await child.finished()
            finally:
                await child.end()
        except (OSError, TimeoutError) as error:
            code, complaint = 1, str(error) or "it takes too long"
        if told:
            logger.error("history: set aside, since it can't be read: %s", told.decode(errors="replace").strip())
        if code == 0:
            self.num_rolls += 1
            self._faults.pop("roll", None)
        else:
            self.complain("roll", f"no columns are made of what was written: {complaint.strip()[-_MAX_WORDS:]}")
            await asyncio.to_thread(self._bound_journals)
        return bool(told)

    def give_up(self) -> None:
        """Begin another journal; the oldest go where they take all the room."""
        self.begin()
        self._bound_journals()

    def complain(self, what: str, fault: str) -> None:
        """Say once what is wrong."""
        if fault != self._faults.get(what):
            logger.warning("history: %s", fault)
        self._faults[what] = fault

    def _size(self) -> int:
        total = 0
        with contextlib.suppress(OSError):
            total = sum(path.stat().st_size for path in self.directory.iterdir())
        return total

    @property
    def _max_bytes(self) -> int:
        return self._wanted.max_mib * 2**20

    def _bound_journals(self) -> None:
        """Delete the oldest journals where they take all the room."""
        with contextlib.suppress(OSError):
            total = 0
            for path in sorted(self.directory.glob(journals.PATTERN), reverse=True):
                total += path.stat().st_size
                if total > self._max_bytes:
                    self.num_lost += path.read_bytes().count(b"\n")
                    path.unlink()


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
        found = await asyncio.to_thread(_node_rows, cluster)
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
