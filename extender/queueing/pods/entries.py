"""A pod of the queue, and the stage that it is in: nothing but the transitions here changes it.

While a write about a pod is under way the watch changes what is known of the pod, and not its stage: that follows from
how the write ended.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from extender.kube.objects import Pod, PodSpec
from extender.planning.plans import PlanPod
from extender.planning.wait_reasons import FOR_WANT_OF_ROOM, Cause, Code, WaitReason
from extender.queueing.pods.nominations import NOMINATION_LOST, is_for_autoscalers, nominated_node, planned_node
from extender.queueing.pods.objects import is_gated

_MAX_NODE_NAME: Final = 253


class Stage(Enum):
    """Where a pod is between its gate and its node."""

    GATED = "gated"
    """Behind the gate, and waits for a plan."""
    NOMINATING = "nominating"
    """Planned, its GPUs reserved; its node is being written."""
    OPENING = "opening"
    """Its gate is being opened."""
    WITHDRAWING = "withdrawing"
    """Behind the gate; a nomination that it should not have is being taken back."""
    OPENED = "opened"
    """Let go: for its node, or to kube-scheduler as any other pod."""
    LOST = "lost"
    """Let go, its node not to be had, nor another one: it waits for a plan."""
    RENOMINATING = "renominating"
    """Planned anew, its GPUs reserved; its next node is being written."""
    UNSETTLED = "unsettled"
    """What was written on it may have taken effect or not, or has to be taken back: until that is settled it holds
    what was written. Only where kube-scheduler calls no extender: there the API server alone knows."""

    @property
    def behind_gate(self) -> bool:
        """Whether its gate is still shut, as far as Kerf knows."""
        return self in (Stage.GATED, Stage.NOMINATING, Stage.WITHDRAWING)

    @property
    def is_written(self) -> bool:
        """Whether a decision about it is being written."""
        return self in (Stage.NOMINATING, Stage.OPENING, Stage.RENOMINATING)

    @property
    def waits(self) -> bool:
        """Whether it waits for a plan."""
        return self in (Stage.GATED, Stage.LOST)


class StageError(RuntimeError):
    """A transition that there is not."""


@dataclass(slots=True)
class Skips:
    """How often a pod was passed over and why, and what of that is written on it."""

    reason: WaitReason | None = None
    count: int = 0
    """Of new reasons."""
    written: WaitReason | None = None
    written_at: float = float("-inf")
    """Monotonic time of the last try."""

    def add(self, reason: WaitReason) -> None:
        """It was passed over once more."""
        if reason != self.reason:
            self.reason, self.count = reason, self.count + 1


@dataclass(slots=True, eq=False)
class Entry:
    """A pod that waits, or that was let go and has no node yet."""

    pod: Pod
    created: float
    """Unix time."""
    seen: float
    """Monotonic time of the first sight."""
    planned: PlanPod | None = None
    """As planners take it; None when it can't be planned."""
    fault: WaitReason | None = None
    """Why it can't be planned."""
    left: str = ""
    """Why it is kube-scheduler's to place, "" where it is not."""
    stage: Stage = Stage.GATED
    opened: float = float("-inf")
    """Monotonic time at which its gate was found open or opened, or it was nominated anew."""
    by_kerf: bool = False
    """Whether Kerf has let it go, within its order and quotas."""
    node: str = ""
    """Node that it was nominated for."""
    lost: str = ""
    """That node and why it was not to be had, until it is nominated anew."""
    num_lost: int = 0
    """How often that has happened."""
    unjudged: str = ""
    """The node lost last, until a plan tells whether it had room."""
    num_refused: int = 0
    """How often kube-scheduler has refused it a node that had room by all that plans know."""
    refused: str = ""
    """That node, the last one, and kube-scheduler's words."""
    refused_as: str = ""
    """What it asked then, as `Refusals` tells kinds of pods apart."""
    kind: tuple[PlanPod, PodSpec, bytes, str] | None = None
    """The same of what it asks now, last, and what of it was worked out of what before."""
    suspect: bool = False
    """Whether that has happened, or may have: it was let go by a Kerf before this one, and then refused."""
    found: bool = False
    """Whether its gate was found open, and it was not nominated since."""
    take_back: bool = False
    """Whether its nomination is to be taken back, unsettled as it is, even if it stands."""
    skips: Skips = field(default_factory=Skips)
    lacks_room_since: float = field(init=False)
    """Unix time since which it waits for nothing but room: since it was made, unless it was seen to wait for something
    else, as a gate of its own or its quota."""
    behind_head: bool = False
    """Whether the last plan kept nodes for one that comes before it."""
    kept_back: float | None = None
    """Monotonic time since when it has been passed over for the head, though there is room; None when it is not."""

    def __post_init__(self) -> None:
        self.lacks_room_since = self.created

    @property
    def uid(self) -> str:
        """Of the pod."""
        return self.pod.metadata.uid

    @property
    def namespace(self) -> str:
        """Of the pod."""
        return self.pod.metadata.namespace

    @property
    def num_gpus(self) -> int:
        """GPUs that it asks for, 0 where that can't be understood."""
        return self.planned.num_gpus if self.planned is not None else 0

    @property
    def lacks_only_room(self) -> bool:
        """Whether it waits for a plan, and for want of room alone, as far as the last round knows."""
        told = self.skips.reason
        return self.stage.waits and self.planned is not None and (told is None or told.code in FOR_WANT_OF_ROOM)

    @property
    def may_be_refused(self) -> bool:
        """Whether kube-scheduler has refused it a node with room, as far as is known before the next plan tells."""
        return self.suspect or bool(self.unjudged)

    def pass_over(self, why: WaitReason | None, now: float) -> None:
        """It gets no node in this round. `now` is Unix time."""
        if why is None or why.code is Code.NOT_REACHED or not self.stage.waits:
            return
        told = self.skips.reason
        waited = told is not None and told.code not in FOR_WANT_OF_ROOM and told.code.cause is not Cause.API
        if waited and why.code in FOR_WANT_OF_ROOM:
            self.lacks_room_since = max(now, self.created)
        self.skips.add(why)

    def on_its_way(self, now: float, within_s: float) -> bool:
        """Whether it is being let go for a node, or was a short while ago."""
        if self.stage is Stage.OPENED:
            return bool(self.node) and now - self.opened < within_s
        return bool(self.node) and not self.stage.waits

    def is_late(self, now: float, within_s: float) -> bool:
        """Whether it was let go for a node longer ago, and has none yet."""
        return self.stage is Stage.OPENED and bool(self.node) and now - self.opened >= within_s

    @property
    def is_out(self) -> bool:
        """Whether Kerf has let it go, or is about to, and has not taken that back: it may have a node at any time."""
        return not self.stage.waits and (bool(self.node) or (self.stage is Stage.OPENED and self.by_kerf))

    @property
    def awaits_new_node(self) -> bool:
        """Whether it was let go for autoscalers, and has no node in view yet."""
        if not is_for_autoscalers(self.pod) or planned_node(self.pod):
            return False
        return self.stage is Stage.LOST or (self.stage is Stage.OPENED and not self.node)

    def reserve(self, node: str) -> None:
        """It is planned, and its GPUs are reserved: the node is to be written."""
        self._enter(Stage.RENOMINATING if self.stage is Stage.LOST else Stage.NOMINATING, Stage.GATED, Stage.LOST)
        self.node = node
        self.skips.written = None  # with the node, why it waited is taken off the pod

    def open(self, now: float, *, by_kerf: bool = True) -> None:
        """Its gate is to be opened."""
        self._enter(Stage.OPENING, Stage.GATED, Stage.NOMINATING)
        self.opened, self.by_kerf, self.found = now, by_kerf, False

    def was_opened(self) -> None:
        """That was done."""
        self._enter(Stage.OPENED, Stage.OPENING)

    def withdraw(self) -> None:
        """Its nomination is to be taken back."""
        self._enter(Stage.WITHDRAWING, Stage.GATED)

    def put_back(self, now: float) -> None:
        """A write failed or has ended, and the gate is shut as before: unless somebody else has opened it meanwhile."""
        self._enter(Stage.GATED, Stage.NOMINATING, Stage.OPENING, Stage.WITHDRAWING)
        self.node, self.by_kerf = "", False
        if not is_gated(self.pod):
            self.find_open(now)

    def find_open(self, now: float) -> None:
        """The gate is found open: by what is written on the pod, a Kerf before this one or somebody else opened it.

        kube-scheduler takes the nomination of a pod away that it refuses: then the annotation is believed as far as
        that the pod waits for a plan as one behind the gate does, and holds nothing meanwhile. One that was nominated
        anew may have been refused before.
        """
        self._enter(Stage.OPENED, Stage.GATED)
        self.opened, self.node, self.found = now, nominated_node(self.pod), True
        self.suspect |= NOMINATION_LOST in (self.pod.metadata.annotations or {})
        self.by_kerf = bool(self.node)
        if not self.node and (planned := planned_node(self.pod)) and self.pod.refusal:
            self.lose(planned[:_MAX_NODE_NAME])

    def lose(self, node: str) -> None:
        """kube-scheduler has refused it the node it was let go for, and all others."""
        self._enter(Stage.LOST, Stage.OPENED)
        self._lose(node)

    def _lose(self, node: str) -> None:
        said = self.pod.refusal or self.refused.partition(": ")[2] or "kube-scheduler did not take it"
        self.lost = f"{node}: {said}"
        self.num_lost, self.unjudged = self.num_lost + 1, node
        self.suspect |= self.found and bool(planned_node(self.pod))

    def judge(self, *, had_room: bool) -> None:
        """Whether the node that it lost last had room is known."""
        if had_room:
            self.num_refused, self.refused, self.suspect = self.num_refused + 1, self.lost, True
        self.unjudged = ""

    def forgive(self) -> None:
        """What was refused was another request than it makes now."""
        self.num_refused, self.refused, self.suspect, self.unjudged = 0, "", False, ""

    def renominated(self, now: float) -> None:
        """Its next node is written."""
        self._enter(Stage.OPENED, Stage.RENOMINATING)
        self.opened, self.by_kerf, self.lost, self.found = now, True, "", False
        self.skips.reason = self.skips.written = None

    def stay_lost(self) -> None:
        """Its next node could not be written."""
        self._enter(Stage.LOST, Stage.RENOMINATING)

    def recall(self) -> None:
        """Its gate was opened, and nobody tells that it is open: it waits again."""
        self._enter(Stage.GATED, Stage.OPENED)
        self.node = ""

    def doubt(self, *, take_back: bool = False) -> None:
        """Nobody knows what the API server has of it, or that has to be taken back."""
        self._enter(
            Stage.UNSETTLED,
            Stage.GATED,
            Stage.NOMINATING,
            Stage.OPENING,
            Stage.OPENED,
            Stage.LOST,
            Stage.RENOMINATING,
        )
        self.take_back = take_back

    def settle_open(self, pod: Pod, now: float) -> None:
        """Its gate is open, and its nomination stands if it has one."""
        self._enter(Stage.OPENED, Stage.UNSETTLED)
        self.pod, self.opened, self.by_kerf, self.lost = pod, now, bool(self.node), ""

    def settle_shut(self, pod: Pod) -> None:
        """It is behind its gate, and nothing of a node is written on it."""
        self._enter(Stage.GATED, Stage.UNSETTLED)
        self.pod, self.node, self.by_kerf = pod, "", False

    def settle_lost(self, pod: Pod) -> None:
        """Its gate is open, and nothing of a node is written on it any more."""
        self._enter(Stage.LOST, Stage.UNSETTLED)
        self.pod = pod
        if not self.lost:
            self._lose(self.node)

    def give_up(self) -> None:
        """It has lost its node and is kube-scheduler's from now on."""
        self._enter(Stage.OPENED, Stage.LOST)
        self.node = self.lost = ""

    def _enter(self, stage: Stage, *before: Stage) -> None:
        """Raises StageError unless it is in one of the stages that come before."""
        if self.stage not in before:
            raise StageError(f"pod {self.pod.key} is {self.stage.value}, and can't become {stage.value} by this")
        self.stage = stage
