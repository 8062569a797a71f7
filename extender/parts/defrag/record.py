"""Records the plan under way in a ConfigMap before each eviction, so that the next leader knows the moves under way.

Every write carries the resourceVersion that it is based on, so that concurrent leaders conflict. Anyone who may write
the ConfigMap can have nodes kept for a while, but no pod evicted: moves read from it are only finished.

The end of a plan is written until that succeeds; otherwise the next leader would keep its places.
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
    """Phase of a plan."""

    MOVING = "moving"
    """Pods are moved step by step."""
    PLACING = "placing"
    """All moves are done; the target gets its nodes."""
    DONE = "done"
    STOPPED = "stopped"
    """Given up; no move is under way."""

    @property
    def active(self) -> bool:
        """Whether the plan is under way."""
        return self in (Phase.MOVING, Phase.PLACING)


class Stage(StrEnum):
    """Stage of a move."""

    PLANNED = "planned"
    EVICTING = "evicting"
    """The pod is being evicted; its new place is kept."""
    COMING = "coming"
    """The pod is gone; its replacement is not released yet."""
    STARTING = "starting"
    """The replacement was released to its place."""
    DONE = "done"
    """The replacement runs on its planned node."""
    LEFT = "left"
    """The pod was not evicted."""
    LOST = "lost"
    """The replacement runs elsewhere, or timed out; its place is released."""

    @property
    def under_way(self) -> bool:
        """Whether a place is kept for the move."""
        return self in (Stage.EVICTING, Stage.COMING, Stage.STARTING)


class Culprit(StrEnum):
    """Cause of a plan's failure."""

    NOBODY = ""
    """None or unknown; failed moves have their own reasons."""
    TARGET = "target"
    """The target can no longer be placed as planned: it has changed, or is over its quota."""
    MOVED = "moved"
    """The moves together take too long."""


class Progress(msgspec.Struct):
    """Progress of a move."""

    uid: str
    """UID of the evicted pod."""
    stage: Stage = Stage.PLANNED
    known: list[str] = []
    """UIDs of its controller's pods that waited before the eviction: none of them is its replacement."""
    replacement: str = ""
    """UID of the replacement, "" until it exists."""
    why: str = ""
    """What went wrong."""


class Record(msgspec.Struct):
    """A plan and its progress."""

    id: str
    plan: RoomPlan
    progress: list[Progress]
    """Progress of each move, in the plan's order."""
    target: str = ""
    """What room is made for, in words."""
    phase: Phase = Phase.MOVING
    step: int = -1
    """The current or last step; -1 before the first."""
    why: str = ""
    """Why it was stopped."""
    culprit: Culprit = Culprit.NOBODY
    begun: float = 0.0
    """Unix time."""
    ended: float = 0.0
    """Unix time, 0 while it is under way."""
    evicted: list[float] = []
    """Unix times of the last hour's evictions, including those of earlier plans."""


class RecordError(ClusterError):
    """The ConfigMap can't be used; says why."""


@dataclass(eq=False)
class Records:
    """The ConfigMap that holds the last plan."""

    transport: Transport
    namespace: str
    name: str
    _version: str = field(default="", init=False)

    async def read(self) -> Record | None:
        """The last plan; None if there is none, or an invalid one. Raises ClusterError."""
        try:
            config_map = await records.read(self.transport, self._path)
            if config_map is None:
                raise RecordError(f"there is no ConfigMap {self.namespace}/{self.name}")
            self._version = config_map.metadata.resource_version
            text = (config_map.data or {}).get(_KEY)
            record = None if text is None else msgspec.json.decode(text, type=Record)
            return record if record is not None and _is_sound(record) else None
        except msgspec.DecodeError:
            return None  # written by another version, or by hand: must not block later plans

    async def write(self, record: Record) -> None:
        """Write over the last version read or written. Raises ClusterError, also for a conflict."""
        data = {_KEY: msgspec.json.encode(record).decode()}
        self._version = await records.write(self.transport, self._path, self._version, data=data)

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps/{self.name}"


def _is_sound(record: Record) -> bool:
    """Whether a record is consistent and has valid names, since names become parts of URL paths."""
    moves = record.plan.moves
    names = [name for move in moves for name in (*move.pod.split("/", 1), move.from_node, move.to_node)]
    same = [move.uid for move in moves] == [progress.uid for progress in record.progress]
    return same and len(names) == 4 * len(moves) and all(map(is_name, names))


UNUSABLE: Final = (403, 404, 422)
"""HTTP statuses of a ConfigMap that is missing or unusable."""


@dataclass(eq=False)
class Ending:
    """The last plan, until its end is recorded."""

    records: Records
    fence: Fence
    record: Record | None = field(default=None, init=False)

    async def write(self) -> Exception | None:
        """Try once to record the end; returns the error if that fails."""
        record, self.record = self.record, None
        if record is None:
            return None
        try:
            await self.records.write(record)
        except (ClusterError, msgspec.DecodeError) as error:
            gone = isinstance(error, ApiError) and error.status in UNUSABLE
            if not gone and await self._is_last(record):
                self.record = record
            return error
        return None

    async def _is_last(self, record: Record) -> bool:
        """Whether a plan may still be recorded as under way.

        Leadership is confirmed before reading: a process whose Lease lapsed for a moment leads on without a takeover,
        and a resourceVersion that it has read is one that it may overwrite.
        """
        try:
            await self.fence.confirm_now()
            last = await self.records.read()
        except (FencedError, ClusterError):
            return True
        return last is not None and last.id == record.id and last.phase.active
