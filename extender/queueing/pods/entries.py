"""A pod of the queue and its stage, which only the transitions here change.

During a write about a pod, watch events update the pod but not its stage: that depends on the outcome of the write.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from extender.kube.objects import Pod, PodSpec
from extender.planning.plans import PlanPod
from extender.planning.wait_reasons import ROOM_CODES, Cause, Code, WaitReason
from extender.queueing.pods.nominations import NOMINATION_LOST, is_for_autoscalers, nominated_node, planned_node
from extender.queueing.pods.objects import is_gated

_MAX_NODE_NAME: Final = 253


class Stage(Enum):
    """Where a pod is between its gate and its node."""

    GATED = "gated"
    """Gated, waiting for a plan."""
    NOMINATING = "nominating"
    """Planned with its GPUs reserved; its nomination is being written."""
    OPENING = "opening"
    """Its gate is being opened."""
    WITHDRAWING = "withdrawing"
    """Gated; an unwanted nomination is being withdrawn."""
    OPENED = "opened"
    """Released: to its node, or without one."""
    LOST = "lost"
    """Released, but neither its node nor another was available: it waits for a plan."""
    RENOMINATING = "renominating"
    """Planned again with its GPUs reserved; its next nomination is being written."""
    UNSETTLED = "unsettled"
    """A write on it has an unknown outcome, or has to be withdrawn; it holds what was written until that is settled.
    Only without an extender, when only the API server knows."""

    @property
    def behind_gate(self) -> bool:
        """Whether its gate is shut, as far as Kerf knows."""
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
    """An invalid transition."""


@dataclass(slots=True)
class PassedOver:
    """Why and how often a pod was passed over, and what of that is written on it."""

    reason: WaitReason | None = None
    count: int = 0
    """Changes of the reason."""
    written: WaitReason | None = None
    written_at: float = float("-inf")
    """Monotonic time of the last attempt to write."""

    def add(self, reason: WaitReason) -> None:
        """Note that it was passed over."""
        if reason != self.reason:
            self.reason, self.count = reason, self.count + 1


@dataclass(slots=True, eq=False)
class Entry:
    """A pod that waits, or was released and has no node yet."""

    pod: Pod
    created: float
    """Unix time."""
    seen: float
    """Monotonic time when first seen."""
    planned: PlanPod | None = None
    """Its form for planners, None when it can't be planned."""
    fault: WaitReason | None = None
    """Why it can't be planned."""
    left_to_scheduler: str = ""
    """Why it is left to kube-scheduler, "" if it is not."""
    stage: Stage = Stage.GATED
    opened: float = float("-inf")
    """Monotonic time at which its gate was opened or found open, or it was renominated."""
    by_kerf: bool = False
    """Whether a plan or `fail_open_s` released it: it counts in quotas, and filter does not check it against them."""
    node: str = ""
    """Its nominated node."""
    lost: str = ""
    """The nominated node that it lost, and why, until it is renominated."""
    num_lost: int = 0
    """Number of nominated nodes lost."""
    unjudged: str = ""
    """The node lost last, until a plan has judged whether it had room."""
    num_refused: int = 0
    """How often kube-scheduler refused a node that had room by all that plans consider."""
    refused: str = ""
    """The last refused node and kube-scheduler's message."""
    refused_as: str = ""
    """The kind of pods, as in `Refusals`, that it had at its last refusal."""
    kind: tuple[PlanPod, PodSpec, bytes, str] | None = None
    """Its current kind as in `Refusals`, last, and the inputs that it was computed from."""
    suspect: bool = False
    """Whether kube-scheduler has refused it a node with room, or may have before this process led."""
    found: bool = False
    """Whether its gate was found open, and it was not nominated since."""
    take_back: bool = False
    """Whether its nomination has to be withdrawn even if it stands; for UNSETTLED."""
    skips: PassedOver = field(default_factory=PassedOver)
    lacks_room_since: float = field(init=False)
    """Unix time since which it waits for room only: its creation, unless it was seen to wait for something else since,
    such as another gate or its quota."""
    behind_head: bool = False
    """Whether the last plan kept nodes for a unit before it in the order."""
    kept_back: float | None = None
    """Monotonic time since which it has been passed over for the head although it fits, None when it is not."""

    def __post_init__(self) -> None:
        self.lacks_room_since = self.created

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return self.pod.metadata.uid

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return self.pod.metadata.namespace

    @property
    def num_gpus(self) -> int:
        """GPUs that it requests, 0 if it can't be planned."""
        return self.planned.num_gpus if self.planned is not None else 0

    @property
    def lacks_only_room(self) -> bool:
        """Whether it waits for a plan and, by the last round, lacks room only."""
        reason = self.skips.reason
        return self.stage.waits and self.planned is not None and (reason is None or reason.code in ROOM_CODES)

    @property
    def may_be_refused(self) -> bool:
        """Whether kube-scheduler has refused it a node with room, or may have, until a plan judges that."""
        return self.suspect or bool(self.unjudged)

    def pass_over(self, why: WaitReason | None, now: float) -> None:
        """Note that it gets no node in this round; `now` is Unix time."""
        if why is None or why.code is Code.NOT_REACHED or not self.stage.waits:
            return
        last = self.skips.reason
        waited_for_else = last is not None and last.code not in ROOM_CODES and last.code.cause is not Cause.API
        if waited_for_else and why.code in ROOM_CODES:
            self.lacks_room_since = max(now, self.created)
        self.skips.add(why)

    def on_its_way(self, now: float, within_s: float) -> bool:
        """Whether it is being released to a node, or was within `within_s`."""
        if self.stage is Stage.OPENED:
            return bool(self.node) and now - self.opened < within_s
        return bool(self.node) and not self.stage.waits

    def is_late(self, now: float, within_s: float) -> bool:
        """Whether it was released to a node longer ago and has none yet."""
        return self.stage is Stage.OPENED and bool(self.node) and now - self.opened >= within_s

    @property
    def is_out(self) -> bool:
        """Whether Kerf has released it or is about to, without withdrawing that: it may get a node at any time."""
        return not self.stage.waits and (bool(self.node) or (self.stage is Stage.OPENED and self.by_kerf))

    @property
    def awaits_new_node(self) -> bool:
        """Whether it was released for autoscalers and has no planned node yet."""
        if not is_for_autoscalers(self.pod) or planned_node(self.pod):
            return False
        return self.stage is Stage.LOST or (self.stage is Stage.OPENED and not self.node)

    def reserve(self, node: str) -> None:
        """Enter NOMINATING or RENOMINATING with its GPUs reserved: the node will be written."""
        self._enter(Stage.RENOMINATING if self.stage is Stage.LOST else Stage.NOMINATING, Stage.GATED, Stage.LOST)
        self.node = node
        self.skips.written = None  # the nomination removes the wait reason from the pod

    def open(self, now: float, *, by_kerf: bool = True) -> None:
        """Enter OPENING: its gate will be opened."""
        self._enter(Stage.OPENING, Stage.GATED, Stage.NOMINATING)
        self.opened, self.by_kerf, self.found = now, by_kerf, False

    def was_opened(self) -> None:
        """Enter OPENED: its gate was opened."""
        self._enter(Stage.OPENED, Stage.OPENING)

    def withdraw(self) -> None:
        """Enter WITHDRAWING: its nomination will be withdrawn."""
        self._enter(Stage.WITHDRAWING, Stage.GATED)

    def put_back(self, now: float) -> None:
        """Enter GATED again after a write, or OPENED if another client has opened the gate meanwhile."""
        self._enter(Stage.GATED, Stage.NOMINATING, Stage.OPENING, Stage.WITHDRAWING)
        self.node, self.by_kerf = "", False
        if not is_gated(self.pod):
            self.find_open(now)

    def find_open(self, now: float) -> None:
        """Enter OPENED: a previous leader or another client has opened the gate, as the pod's annotations show.

        kube-scheduler removes the nomination of a pod that it rejects. Then the annotation is trusted only so far that
        the pod waits for a plan like a gated one, without holding anything. A renominated pod may have been refused
        before.
        """
        self._enter(Stage.OPENED, Stage.GATED)
        self.opened, self.node, self.found = now, nominated_node(self.pod), True
        self.suspect |= NOMINATION_LOST in (self.pod.metadata.annotations or {})
        self.by_kerf = bool(self.node)
        if not self.node and (planned := planned_node(self.pod)) and self.pod.refusal:
            self.lose(planned[:_MAX_NODE_NAME])

    def lose(self, node: str) -> None:
        """Enter LOST: kube-scheduler has rejected it on its node and all others."""
        self._enter(Stage.LOST, Stage.OPENED)
        self._lose(node)

    def _lose(self, node: str) -> None:
        message = self.pod.refusal or self.refused.partition(": ")[2] or "kube-scheduler did not take it"
        self.lost = f"{node}: {message}"
        self.num_lost, self.unjudged = self.num_lost + 1, node
        self.suspect |= self.found and bool(planned_node(self.pod))

    def judge(self, *, had_room: bool) -> None:
        """Note whether the node that it lost last had room."""
        if had_room:
            self.num_refused, self.refused, self.suspect = self.num_refused + 1, self.lost, True
        self.unjudged = ""

    def forgive(self) -> None:
        """Forget its refusals: its request has changed since."""
        self.num_refused, self.refused, self.suspect, self.unjudged = 0, "", False, ""

    def renominated(self, now: float) -> None:
        """Enter OPENED: its next nomination is written."""
        self._enter(Stage.OPENED, Stage.RENOMINATING)
        self.opened, self.by_kerf, self.lost, self.found = now, True, "", False
        self.skips.reason = self.skips.written = None

    def stay_lost(self) -> None:
        """Enter LOST again: its next nomination was not written."""
        self._enter(Stage.LOST, Stage.RENOMINATING)

    def recall(self) -> None:
        """Enter GATED again: the watch still reports its opened gate as shut."""
        self._enter(Stage.GATED, Stage.OPENED)
        self.node = ""

    def doubt(self, *, take_back: bool = False) -> None:
        """Enter UNSETTLED: what is written on it is unknown, or with `take_back` has to be withdrawn."""
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
        """Enter OPENED: its gate is open, and its nomination, if any, stands."""
        self._enter(Stage.OPENED, Stage.UNSETTLED)
        self.pod, self.opened, self.by_kerf, self.lost = pod, now, bool(self.node), ""

    def settle_shut(self, pod: Pod) -> None:
        """Enter GATED: its gate is shut, and no assignment is written on it."""
        self._enter(Stage.GATED, Stage.UNSETTLED)
        self.pod, self.node, self.by_kerf = pod, "", False

    def settle_lost(self, pod: Pod) -> None:
        """Enter LOST: its gate is open, and no assignment is written on it any more."""
        self._enter(Stage.LOST, Stage.UNSETTLED)
        self.pod = pod
        if not self.lost:
            self._lose(self.node)

    def give_up(self) -> None:
        """Enter OPENED without a node: a pod that lost its node is left to kube-scheduler."""
        self._enter(Stage.OPENED, Stage.LOST)
        self.node = self.lost = ""

    def _enter(self, stage: Stage, *before: Stage) -> None:
        """Enter a stage. Raises StageError unless it is in one of the stages `before`."""
        if self.stage not in before:
            raise StageError(f"pod {self.pod.key}: invalid transition from {self.stage.value} to {stage.value}")
        self.stage = stage
