"""Records the history of the cluster while this process leads: pods and nodes from the watches, written in batches.

No request waits for it. A pod is recorded when it is created, when it is bound, and when it ends. Lines are appended to
a journal, and a separate process converts journals to Parquet. If writing fails, lines are lost and counted, and Kerf
continues to serve.
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
"""Name of an unknown GPU model."""
_MAX_VALUE: Final = 2**53
"""Limit of a pod's CPU and memory, as columns have 64 bits; larger pods fit nowhere anyway."""


class PodRows:
    """Converts pods to rows, reading their requests as the service does."""

    def __init__(
        self,
        read: Callable[[objects.Pod], PodRequest],
        gang_of: Callable[[objects.Pod], tuple[str, int]],
        models: Callable[[], tuple[GpuModel, ...]],
        salt: bytes | None,
    ) -> None:
        """`read` and `gang_of` raise RequestError; `models` returns the cluster's; with a salt, names are hashed."""
        self._read, self._gang_of, self._models, self._salt = read, gang_of, models, salt

    def row(self, pod: objects.Pod, now: float) -> Row | None:
        """The row of a pod as of `now`, in Unix time; None for pods that are not recorded (`files.about_of`)."""
        metadata = pod.metadata
        if metadata.belongs_to_a_node or not metadata.uid:
            return None
        try:
            request = self._read(pod)
            gpus, priority = request.gpus, request.priority
        except RequestError:
            return None
        if gpus is not None and (gpus.mig or gpus.unit is AskedUnit.SHARED):
            return None
        cpu, memory = (request.cpu_milli, request.memory_mib) if gpus else read_compute(pod.spec)
        cpu, memory = min(cpu, _MAX_VALUE), min(memory, _MAX_VALUE)
        demand = (0, 0, 0, "")
        if gpus is not None:
            demand = max(gpus.count, 1), gpus.milli or WHOLE_MILLI, gpus.memory_each_mib, self._accepted(gpus)
        started = (unix_time(pod.status.start_time) or now) if pod.spec.node_name else None
        return (
            metadata.uid,
            *(self._name(text) for text in (metadata.namespace, owner_of(metadata), self._gang(pod))),
            *(priority or pod.spec.priority or 0, *demand, cpu, memory),
            *(unix_time(metadata.creation_timestamp) or now, started, now if pod.finished else None),
            *(pod.spec.node_name or "", _indices(pod)),
        )

    def _gang(self, pod: objects.Pod) -> str:
        try:
            return self._gang_of(pod)[0]
        except RequestError:
            return ""

    def _accepted(self, gpus: GpuRequest) -> str:
        """Names of the acceptable models; the requested pattern if no node has one."""
        if gpus.include is None and gpus.exclude is None and not SEVERAL:
            return ""
        models = self._models()
        allowed = np.flatnonzero(models_allowed(models, gpus.include, gpus.exclude, gpus.vendor)).tolist()
        names = [models[number].name for number in allowed if models[number].name]
        return "|".join(names)[:_MAX_TEXT] or (gpus.include.text[:_MAX_TEXT] if gpus.include else "none")

    def _name(self, text: str) -> str:
        return text[:_MAX_TEXT] if self._salt is None else hash_name(text, self._salt)


def _node_rows(cluster: Cluster) -> dict[str, Row]:
    """Rows of the nodes by name, without times; a node with several GPU models gets its most frequent one."""
    exists = cluster.gpu_model >= 0
    num_gpus, memory = exists.sum(axis=1).tolist(), cluster.gpu_memory_mib.max(axis=1, initial=0).tolist()
    cpu, main = cluster.cpu_milli.tolist(), cluster.memory_mib.tolist()
    found: dict[str, Row] = {}
    for name, row in cluster.row_of.items():
        model = ""
        if num_gpus[row]:
            model = cluster.models[int(np.bincount(cluster.gpu_model[row][exists[row]]).argmax())].name or _UNKNOWN
        found[name] = (name, model, num_gpus[row], memory[row], cpu[row], main[row])
    return found


def _indices(pod: objects.Pod) -> str:
    try:
        return ",".join(map(str, assigned_gpus(pod.metadata.annotations or {})))
    except UnreadableError:
        return ""


_ROLL_TIMEOUT_S: Final = 900.0
_JOURNAL_FRAC: Final = 0.125
"""Fraction of `max_mib` above which a journal is converted early."""
_SALT_BYTES: Final = 32
_MAX_COMPLAINT: Final = 300


class Writer:
    """Writes the history's folder, and creates it if necessary."""

    def __init__(self, directory: Path, wanted: HistorySettings, wall_clock: Callable[[], float]) -> None:
        self.directory, self._wanted, self._wall_clock = directory, wanted, wall_clock
        self._faults: dict[str, str] = {}
        """By operation ("write", "roll", "salt"): why it fails."""
        self.num_written = 0
        """Lines written since the start."""
        self.num_lost = 0
        """Lines lost for lack of space."""
        self.num_rolls = 0
        """Conversions to Parquet since the start."""
        self.num_bytes = 0
        """Size of the folder after the last write."""
        self.anew = True
        """Whether the next lines start a new journal."""
        self._rolled_at = 0.0
        self._journal, self._journal_bytes = self.directory, 0
        self._separator = b""

    @property
    def fault(self) -> str:
        """Why the history can't be written, "" if it can."""
        return next(iter(self._faults.values()), "")

    def begin(self) -> None:
        """Start a new journal, whose name sorts after the existing ones whatever the clock says.

        Run this in a thread, as the volume may hang; likewise all other methods that access the folder.
        """
        last = max((path.name for path in self.directory.glob(journals.PATTERN)), default="")
        at = self._wall_clock()
        with contextlib.suppress(ValueError):
            at = max(at, float(last.split("-")[1]) + 0.001 if last else 0.0)
        name = f"journal-{at:017.3f}-{secrets.token_hex(4)}.jsonl"
        self._journal, self._journal_bytes, self.anew = self.directory / name, 0, False

    def salt(self) -> bytes | None:
        """The key that names are hashed with, created the first time; None without hashing. Raises OSError."""
        if not self._wanted.hash_names:
            return None
        path = self.directory / files.SALT
        if not path.exists() or path.stat().st_size != _SALT_BYTES:  # or truncated by a crash, and never used
            self.directory.mkdir(parents=True, exist_ok=True)
            created = self.directory / f"{files.SALT}-{secrets.token_hex(4)}"
            created.touch(mode=0o600)
            created.write_bytes(secrets.token_bytes(_SALT_BYTES))
            created.replace(path)
        self._faults.pop("salt", None)
        return path.read_bytes()

    def write(self, lines: Sequence[bytes]) -> bool:
        """Append lines; returns whether they are on disk. If not, they are lost."""
        if not lines:
            return True
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if self.anew:
                self.begin()
            with self._journal.open("ab") as journal:
                journal.write(self._separator + b"\n".join((*lines, b"")))
                journal.flush()
                os.fsync(journal.fileno())
        except OSError as error:
            self._separator = b"\n"  # the file may end within a line
            self.num_lost += len(lines)
            self.complain("write", f"{self.directory} can't be written: {error.strerror}")
            return False
        self._separator = b""
        self._faults.pop("write", None)
        self.num_written += len(lines)
        self._journal_bytes += sum(map(len, lines)) + len(lines)
        self.num_bytes = self._size()
        return True

    @property
    def due(self) -> bool:
        """Whether it is time to convert journals to Parquet."""
        since_s = self._wall_clock() - self._rolled_at
        return not 0 <= since_s < self._wanted.roll_s or self._journal_bytes > _JOURNAL_FRAC * self._max_bytes

    @property
    def overflows(self) -> bool:
        """Whether a journal is larger than `max_mib`."""
        return self._journal_bytes > self._max_bytes

    async def roll(self) -> bool:
        """Have all journals before the current one converted to Parquet; returns whether unreadable data was lost."""
        self._rolled_at = self._wall_clock()
        unreadable = b""
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
                async with asyncio.timeout(_ROLL_TIMEOUT_S):
                    code, unreadable, complaint = await child.finished()
            finally:
                await child.end()
        except (OSError, TimeoutError) as error:
            code, complaint = 1, str(error) or "timed out"
        if unreadable:
            logger.error("history: moved aside, as it can't be read: %s", unreadable.decode(errors="replace").strip())
        if code == 0:
            self.num_rolls += 1
            self._faults.pop("roll", None)
        else:
            self.complain("roll", f"journals can't be converted to Parquet: {complaint.strip()[-_MAX_COMPLAINT:]}")
            await asyncio.to_thread(self._bound_journals)
        return bool(unreadable)

    def give_up(self) -> None:
        """Start a new journal, and delete the oldest ones beyond `max_mib`."""
        self.begin()
        self._bound_journals()

    def complain(self, what: str, fault: str) -> None:
        """Record a fault, and log it if it is new."""
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
        """Delete the oldest journals beyond `max_mib`."""
        with contextlib.suppress(OSError):
            total = 0
            for path in sorted(self.directory.glob(journals.PATTERN), reverse=True):
                total += path.stat().st_size
                if total > self._max_bytes:
                    self.num_lost += path.read_bytes().count(b"\n")
                    path.unlink()


_MAX_LINES: Final = 200_000
"""Lines that wait to be written, some 60 MB."""
_MAX_PENDING: Final = 20_000
"""Pods without a node that are remembered."""


class Recorder(Background):
    """Records from `start` to `stop`, while this process leads."""

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
        """`rows_by` takes the salt that names are hashed with, None for no hashing."""
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
        """Whether lines were lost, so that everything is recorded again once writing works."""
        self._listed_all = False
        """Whether the pods were listed completely since the start."""
        self._bound: dict[str, bytes] = {}
        """Lines of bound pods by UID; kept on a standby too, as a term may begin without a new list."""
        self._pending: dict[str, bytes] = {}
        """Lines of pods without a node by UID, likewise."""
        self._nodes: Mapping[str, Row] = {}
        self._recorded: Cluster | None = None
        hub.cache(PODS).subscribe(self.changed, on_list=self._listed)

    # Watch events

    def changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """Handle a pod that was added, changed or (`new` is None) removed."""
        leads = self._leading()
        if new is not None:
            known = self._bound if new.spec.node_name else self._pending
            if new.metadata.uid not in known and (known is self._bound or len(known) < _MAX_PENDING):
                self._add(new, known, leads=leads)
        elif old is not None:
            was_known = self._pending.pop(old.metadata.uid, None) or self._bound.pop(old.metadata.uid, None)
            if was_known and leads:
                self._record(journals.Ended(old.metadata.uid, self._wall_clock()))

    def _add(self, pod: objects.Pod, known: dict[str, bytes], *, leads: bool) -> None:
        """Record a new or newly bound pod; if its request is invalid now, its earlier line stands."""
        uid = pod.metadata.uid
        if row := self._row(pod):
            self._pending.pop(uid, None)
            known[uid] = journals.encode(journals.Pod(row))
            if leads:
                self._put(known[uid])

    def _listed(self, uids: set[str], began: float) -> None:
        """Handle a complete list."""
        self._listed_all = True

    # Writing

    def start(self) -> None:
        """Start, in the running event loop."""
        super().start()
        self.tasks.begin("history's conversion", self._roll, needed=False)

    async def run(self) -> None:
        try:
            await repeat(self.round, self._interval_s, "writing the history")
        finally:
            self.writer.write(self._take_lines())  # flush at exit

    async def _roll(self) -> None:
        await repeat(self.roll, self._interval_s, "converting the history")

    async def round(self) -> None:
        """Write the lines since the last round."""
        now = self._wall_clock()
        if self._leading():
            await self._record_nodes(now)
            whole = self._listed_all and not self._complete
            self._record(journals.Complete(now) if whole else journals.Until(now))
            self._complete |= whole
        async with self._writing:
            written = await asyncio.to_thread(self.writer.write, self._take_lines())
        if self._lost and written:
            self._leads = False  # record everything again, as at the beginning of a term
        self._lost = not written

    async def roll(self) -> None:
        """Convert journals if it is time, but not before everything has been recorded once in this term."""
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
        """Whether this process leads; at the beginning of a term, records everything that is known."""
        leads = not self._standby()
        if leads and not self._leads:
            self._complete, self._nodes, self._recorded, self._leads = False, {}, None, True
            self.writer.anew = True  # sort after the journals that others wrote meanwhile
            self._record(journals.Begun(self._wall_clock()))
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

    async def _record_nodes(self, now: float) -> None:
        cluster, recorded = self._snapshot(), self._recorded
        if recorded is not None and cluster.row_of is recorded.row_of and _same_nodes(cluster, recorded):
            return
        rows = await asyncio.to_thread(_node_rows, cluster)
        self._recorded = cluster
        for name, row in rows.items():
            if self._nodes.get(name) != row:
                self._record(journals.Node(row, now))
        for name in self._nodes.keys() - rows.keys():
            self._record(journals.Gone(name, now))
        self._nodes = rows

    def _record(self, line: Line) -> None:
        self._put(journals.encode(line))

    def _put(self, line: bytes) -> None:
        if len(self._lines) >= _MAX_LINES:
            self.num_unwritten += 1
        else:
            self._lines.append(line)

    def _take_lines(self) -> list[bytes]:
        """Remove and return the lines that wait to be written."""
        lines, self._lines = self._lines, []
        return lines


def _same_nodes(one: Cluster, other: Cluster) -> bool:
    """Whether the nodes of two clusters with the same rows are the same."""
    columns = ("gpu_model", "gpu_memory_mib", "cpu_milli", "memory_mib")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)
