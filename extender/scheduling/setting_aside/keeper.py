"""Sets nodes aside, and opens them again: the leader writes a note on the node, all replicas read it.

Nothing else is kept: who leads next goes on with the notes that it finds. A node is set aside for a while, twice as
long each time in a row; then it is open on trial, until a pod has lived well on it. What somebody else writes on a
node, or takes away, counts at once.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from extender.core.resources.nodes import GpuUnit
from extender.kube import objects
from extender.kube.background import Background, repeat
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.commit import FencedError
from extender.kube.events import EventRecorder
from extender.kube.paths import NODES_PATH
from extender.kube.pauses import Pauses
from extender.ledger.ledger import Ledger
from extender.plugins.protocol import UnreadableError
from extender.plugins.set_aside import MAX_TIMES, NEVER, SET_ASIDE, Note, is_exempt, read_note, text_of
from extender.scheduling.fence import Fence
from extender.scheduling.setting_aside.failures import Case, Failures
from extender.scheduling.setting_aside.lives import Lives

logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
_ON_ITS_WAY_S: Final = 30.0
"""For which a note that was written is waited for."""
_MAX_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Terms:
    """How many nodes are set aside, and for how long."""

    acts: bool
    """Else it is only said."""
    namespaces: int
    early_s: float
    max_frac: float
    """Of the nodes with GPUs; one at least, where there are several."""
    for_s: float
    max_for_s: float


class Keeper(Background):
    """Works in the background, from `start` to `stop`; also a sink of nodes."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it works with
        self,
        transport: Transport,
        ledger: Ledger,
        events: EventRecorder,
        fence: Fence,
        failures: Failures,
        lives: Lives,
        terms: Terms,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        super().__init__("setting nodes aside", needed=False)
        self._transport, self._ledger, self._events, self._fence = transport, ledger, events, fence
        self._failures, self._terms, self._clock, self._wall_clock = failures, terms, clock, wall_clock
        self.lives = lives
        self._notes: dict[str, Note] = {}  # as the watch has told of them
        self._on_its_way: dict[str, tuple[Note | None, float]] = {}  # what was written, until the watch has told
        self._cases: dict[str, Case] = {}  # by which this process has set nodes aside
        self._opened: dict[str, float] = {}  # when this process first knew that a node is on trial
        self._failing: dict[str, Case] = {}
        self._pauses = Pauses()

    # Reading

    @property
    def num_set_aside(self) -> int:
        """Nodes that take no pods."""
        return sum(not note.trial for note in self._notes.values()) if self._terms.acts else 0

    @property
    def num_failing(self) -> int:
        """Nodes that are not set aside although they should be: that is only said, or too many are."""
        return len(self._failing)

    def words(self, node: str) -> str:
        """What is to be said of a node, "" for nothing."""
        note, case = self._notes.get(node) if self._terms.acts else None, self._failing.get(node)
        if note is not None:
            failed = f"{note.pods} pods of {note.namespaces} namespaces failed {self._soon}"
            return f"on trial: {failed}" if note.trial else f"set aside: {failed}; until {_time(note.until)}"
        if case is not None:
            why = "as many nodes are as may be" if self._terms.acts else "set_aside.mode is advise"
            return f"pods fail here: {case} {self._soon}; not set aside: {why}"
        return ""

    @property
    def _soon(self) -> str:
        return f"within {self._terms.early_s:g} s"

    # What the watch tells

    def changed(self, old: objects.Node | None, new: objects.Node | None) -> None:
        """A node was added, has changed or is gone."""
        if new is None:
            if old is not None:
                self._notes.pop(old.metadata.name, None)
                self._clear(old.metadata.name)
            return
        name = new.metadata.name
        try:
            note = read_note(new.metadata.annotations or {})
        except UnreadableError:
            note = None
        if name in self._on_its_way and self._on_its_way[name][0] == note:
            del self._on_its_way[name]
        known = self._notes.pop(name, None)
        if note is not None:
            self._notes[name] = note
        elif known is not None and name not in self._on_its_way:
            self._clear(name)  # somebody else has opened it: what was before counts no more
        if note is None or not note.trial:
            self._opened.pop(name, None)

    # What is done

    async def run(self) -> None:
        await repeat(self.round, _INTERVAL_S, "setting nodes aside")

    async def round(self) -> None:
        """Look at how pods do, and at the nodes for it."""
        self.lives.age()
        if self._fence.fault():
            self.lives.forget_ended()
            self._failing = {}
            return
        await self.lives.read_ended()
        now = self._clock()
        names = set(self._ledger.rows.names())
        self._failures.forget_old(now, names)
        for gone in self._notes.keys() - names:
            del self._notes[gone]
            self._clear(gone)
        self._on_its_way = {name: sent for name, sent in self._on_its_way.items() if sent[1] > now}
        if self._terms.acts:
            for name, note in list(self._notes.items()):
                if name not in self._on_its_way:
                    await self._reconsider(name, note, now)
        await self._accuse(now)

    async def _reconsider(self, name: str, note: Note, now: float) -> None:
        """Open a node whose time is over, or that is not to blame; and one on trial again and for good, or not."""
        node, wall, case = self._ledger.rows.manifest(name), self._wall_clock(), self._cases.get(name)
        boot = _boot(node)
        if node is None:
            return
        if note.trial:
            opened = self._opened.setdefault(name, now)
            if self._failures.well_since(name) >= opened:
                await self._write(node, None, "a pod has lived well on it")
            return
        least = self._terms.namespaces if note.times > 1 else None
        if case is not None and not self._failures.stands(name, case, now, least):
            await self._write(node, None, "those who failed on it have failed elsewhere as well, or a pod lives well")
        elif note.boot and boot and boot != note.boot:
            await self._try_out(node, note, "it has been started again")
        elif not wall < note.until <= wall + self._terms.max_for_s + 1:
            await self._try_out(node, note, "its time is over")

    async def _try_out(self, node: objects.Node, note: Note, why: str) -> None:
        trial = msgspec.structs.replace(note, trial=True, since=int(self._wall_clock()))
        if await self._write(node, trial, why):
            self._failures.forget(node.metadata.name)

    async def _accuse(self, now: float) -> None:
        """Set nodes aside that there is enough against, those first that there is most against."""
        found: list[tuple[str, objects.Node, Case, int]] = []
        for name in self._failures.nodes:
            node, note = self._ledger.rows.manifest(name), self._notes.get(name) if self._terms.acts else None
            aside = note is not None and not note.trial
            if node is None or aside or name in self._on_its_way or is_exempt(node.metadata.annotations or {}):
                continue
            # One on trial needs no more than one failure of each namespace: fewer would be a weapon.
            case = self._failures.against(name, now, None if note is None else self._terms.namespaces)
            if case is not None:
                found.append((name, node, case, 1 if note is None else min(note.times + 1, MAX_TIMES)))
        failing: dict[str, Case] = {}
        room = self._room(now)
        for name, node, case, times in sorted(found, key=lambda entry: (-len(entry[2].failures), entry[0])):
            if self._terms.acts and room > 0 and await self._set_aside(node, case, times):
                room -= 1
            else:
                failing[name] = case
        for name in failing.keys() - self._failing.keys():
            self._say(name, "PodsFailEarly", f"{failing[name]} failed on it {self._soon} of their start", failing[name])
        self._failing = failing

    def _room(self, now: float) -> int:
        """How many more nodes may be set aside."""
        has_gpus = self._ledger.snapshot(now).unit != GpuUnit.NONE
        num_nodes, on_its_way = int(has_gpus.sum()), {name for name, (note, _) in self._on_its_way.items() if note}
        most = max(int(self._terms.max_frac * num_nodes), 1) if num_nodes > 1 and self._terms.max_frac else 0
        return most - len({name for name, note in self._notes.items() if not note.trial} | on_its_way)

    async def _set_aside(self, node: objects.Node, case: Case, times: int) -> bool:
        wall = int(self._wall_clock())
        for_s = min(self._terms.for_s * 2 ** (times - 1), self._terms.max_for_s)
        until = wall + max(int(for_s), 1)
        note = Note(len(case.failures), len(case.namespaces), wall, until, times, _boot(node))
        told = f"{case} failed on it {self._soon} of their start: it takes no more of them until {_time(until)}"
        if not await self._write(node, note, f'{told}; {SET_ASIDE}: "{NEVER}" prevents that', case):
            return False
        self._cases[node.metadata.name] = case
        return True

    async def _write(self, node: objects.Node, note: Note | None, why: str, case: Case | None = None) -> bool:
        """Write a note on a node as it is known, or take it away; whether that succeeded."""
        name = node.metadata.name
        if self._pauses.why("", name, self._clock()) is not None:
            return False
        text = None if note is None else text_of(note)
        metadata = {"annotations": {SET_ASIDE: text}, "resourceVersion": node.metadata.resource_version}
        try:
            await self._fence.confirm_now()
            await self._transport.patch(f"{NODES_PATH}/{name}/status", msgspec.json.encode({"metadata": metadata}))
        except FencedError:
            return False
        except ClusterError as error:
            if not (isinstance(error, ApiError) and error.status in (404, 409)):  # else it is looked at anew
                logger.warning("node %s: %s was not written: %s", name, SET_ASIDE, error)
                self._pauses.failed("", name, error, self._clock())
            return False
        self._pauses.succeeded("", name)
        self._on_its_way[name] = note, self._clock() + _ON_ITS_WAY_S
        if note is None:
            self._clear(name)
        aside = note is not None and not note.trial
        self._say(name, "SetAside" if aside else "OnTrial" if note else "TakesPodsAgain", why, case)
        return True

    def _say(self, name: str, reason: str, why: str, case: Case | None) -> None:
        """Tell everybody, and only the log whose pods they were."""
        self._events.emit_about_node(name, reason=reason, message=why)
        whose = "" if case is None else f" (namespaces {', '.join(case.namespaces[:_MAX_NAMED])})"
        logger.warning("node %s: %s: %s%s", name, reason, why, whose)

    def _clear(self, name: str) -> None:
        self._failures.forget(name)
        self._cases.pop(name, None)
        self._opened.pop(name, None)


def _boot(node: objects.Node | None) -> str:
    info = node.status.node_info if node is not None else None
    return info.boot_id[:160] if info is not None else ""


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
