"""What is written down of a plan that is carried out, in a ConfigMap of Kerf's namespace: before each eviction, so that
whoever leads next knows what is under way.

Every write carries the version that it goes by: of two leaders that write one hears that it was late. Whoever may write
it can have nodes kept for a while, and nobody evicted: what is read there is finished, never gone on with.

Writing down that a plan has ended, again until it is: else whoever leads next keeps its places.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from extender.kube import records
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.commit import FencedError
from extender.kube.transport import is_name
from extender.parts.defrag.plan import RoomPlan
from extender.scheduling.fence import Fence

_KEY: Final = "plan.json"


class Phase(StrEnum):
    """How far a plan is."""

    MOVING = "moving"
    """Pods are moved, one step after the other."""
    PLACING = "placing"
    """All are moved: the target is given its nodes."""
    DONE = "done"
    STOPPED = "stopped"
    """It was given up; nothing of it is under way."""

    @property
    def active(self) -> bool:
        """Whether something is under way, or to come."""
        return self in (Phase.MOVING, Phase.PLACING)


class Stage(StrEnum):
    """How far a move is."""

    PLANNED = "planned"
    EVICTING = "evicting"
    """The pod is asked to go; its next place is kept."""
    COMING = "coming"
    """It is gone, and its replacement not yet let go."""
    STARTING = "starting"
    """Its replacement was let go for its place."""
    DONE = "done"
    """Its replacement has its place, and runs."""
    LEFT = "left"
    """It was never evicted."""
    LOST = "lost"
    """Its replacement runs elsewhere, or was waited for in vain: nothing is kept for it any more."""

    @property
    def under_way(self) -> bool:
        """Whether something is kept for it."""
        return self in (Stage.EVICTING, Stage.COMING, Stage.STARTING)


class Culprit(StrEnum):
    """Whose doing it is that a plan goes no further."""

    NOBODY = ""
    """Nobody's, or it is not known: what came to nothing says so itself, move by move."""
    TARGET = "target"
    """Room was being made for it, and it has changed what it asks."""
    MOVED = "moved"
    """Those who move take too long, all together."""


class Progress(msgspec.Struct):
    """Of a move."""

    uid: str
    """Of the pod that is evicted."""
    stage: Stage = Stage.PLANNED
    known: list[str] = []
    """Pods of its controller that waited already when it was evicted, by UID: none of them is its replacement."""
    replacement: str = ""
    """UID, "" until it is there."""
    why: str = ""
    """What went wrong with it."""


class Record(msgspec.Struct):
    """A plan, and how far it is."""

    id: str
    plan: RoomPlan
    progress: list[Progress]
    """Of its moves, in their order."""
    target: str = ""
    """What room is made for, in words."""
    phase: Phase = Phase.MOVING
    step: int = -1
    """The step under way, or the last that was; -1 before the first."""
    why: str = ""
    """Why it goes no further."""
    culprit: Culprit = Culprit.NOBODY
    begun: float = 0.0
    """Unix time."""
    ended: float = 0.0
    """Unix time, 0 while it is under way."""
    evicted: list[float] = []
    """Unix times of the evictions of the last hour, those of plans before it included."""


class RecordError(ClusterError):
    """The ConfigMap can't be used; says why."""


@dataclass(eq=False)
class Records:
    """One ConfigMap, which holds the last plan."""

    transport: Transport
    namespace: str
    name: str
    _version: str = field(default="", init=False)

    async def read(self) -> Record | None:
        """The last plan, None where there was none, or none that can be understood. Raises ClusterError."""
        try:
            found = await records.read(self.transport, self._path)
            if found is None:
                raise RecordError(f"there is no ConfigMap {self.namespace}/{self.name}")
            self._version = found.metadata.resource_version
            text = (found.data or {}).get(_KEY)
            record = None if text is None else msgspec.json.decode(text, type=Record)
            return record if record is not None and _is_sound(record) else None
        except msgspec.DecodeError:
            return None  # another version's, or somebody's idea of one: it holds nothing up

    async def write(self, record: Record) -> None:
        """Write it over what was read or written last. Raises ClusterError, also where somebody else has written."""
        data = {_KEY: msgspec.json.encode(record).decode()}
        self._version = await records.write(self.transport, self._path, self._version, data=data)

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps/{self.name}"


def _is_sound(record: Record) -> bool:
    """Whether it can be what was written: names become parts of paths."""
    moves = record.plan.moves
    names = [name for move in moves for name in (*move.pod.split("/", 1), move.from_node, move.to_node)]
    same = [move.uid for move in moves] == [progress.uid for progress in record.progress]
    return same and len(names) == 4 * len(moves) and all(map(is_name, names))


NOT_TO_BE_HAD: Final = (403, 404, 422)
"""Answers about a ConfigMap that is not there, or that Kerf may not use."""


@dataclass(eq=False)
class Ending:
    """The last plan, as long as its end is yet to be written down."""

    records: Records
    fence: Fence
    record: Record | None = field(default=None, init=False)

    async def write(self) -> Exception | None:
        """Try it, once; why it is not written down, None where it is or nothing is to be."""
        record, self.record = self.record, None
        if record is None:
            return None
        try:
            await self.records.write(record)
        except (ClusterError, msgspec.DecodeError) as error:
            gone = isinstance(error, ApiError) and error.status in NOT_TO_BE_HAD
            if not gone and await self._is_last(record):
                self.record = record
            return error
        return None

    async def _is_last(self, record: Record) -> bool:
        """Whether a plan may still be the one that is written down, as under way.

        Where a Lease has only lapsed for a moment, this process leads on without a take-over. Then nothing is read: a
        version that is known is one that may be written over.
        """
        try:
            await self.fence.confirm_now()
            found = await self.records.read()
        except (FencedError, ClusterError):
            return True
        return found is not None and found.id == record.id and found.phase.active
