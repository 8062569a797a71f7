"""Pods without a node: who they are, why they wait, and what wakes them.

Waking pods that were rejected: kube-scheduler asks again on cluster events only, and may ask too early.

When a pod ends, kube-scheduler hears of it at the same moment as Kerf and may call filter before Kerf has heard: the
pod is rejected once more, and nothing would happen for up to five minutes. A sampled candidate list hides nodes in the
same way. So while Kerf itself knows a node that fits, a rejected pod is woken, at growing intervals: a change of its
metadata makes kube-scheduler ask again at once. The patch goes to `pods/status`, so that no right to change a pod's
spec is needed.

A pod that waits on is told why by an annotation, now and then: that makes kube-scheduler ask once more, too. And those
that kube-scheduler seems to have forgotten are woken without a rejection.

Pods that kube-scheduler has to try and does not.

A pod without a node that nobody has refused is in kube-scheduler's queue, and is tried again seconds after an error.
One that was deleted and created again under its name while kube-scheduler heard nothing may be in none of its queues
(1.37: its predecessor takes its place there, and leaves none behind): it is tried when it changes, and not before. So a
pod that neither changes nor is asked about is woken as well.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain, zip_longest
from typing import Final

import msgspec

from extender.core.resources.requests import GpuRequest, PodRequest
from extender.kube import objects
from extender.kube.background import Background, repeat
from extender.kube.client import ApiError, ClusterError, Transport
from extender.ledger.ledger import ClaimState, Ledger
from extender.plugins.kerf import EXPLANATION
from extender.scheduling.fair_cache import FairCache
from extender.scheduling.fence import Fence
from extender.scheduling.placer import Placer, PodIdentity, weight_of
from extender.scheduling.queue_rules import QueueRules
from extender.scheduling.skips import SKIPPED, Skips, WaitingPod
from extender.scheduling.unbound_pods import UnboundPod, UnboundPods

logger = logging.getLogger(__name__)

_MAX_SKIPS: Final = 20
"""Times that a pod is left pending for another at most."""
_OVERLOOKED_AFTER_S: Final = 45.0
"""More than kube-scheduler waits after an error, which is 10 s unless it is told otherwise."""
_MAX_AT_ONCE: Final = 20


@dataclass(slots=True)
class _Owed:
    """A pod that is to be tried."""

    version: str
    since: float
    """Monotonic time from which it has not changed, or was woken."""
    num_wakes: int = 0


class _Overlooked:
    """Which pods are overlooked, as far as one can tell from outside."""

    def __init__(self, pods: Callable[[], Iterable[UnboundPod]]) -> None:
        """`pods` gives all pods without a node."""
        self._pods = pods
        self._owed: dict[str, _Owed] = {}

    def due(self, now: float, asked: Callable[[str], bool]) -> list[tuple[PodIdentity, int]]:
        """Pods to wake now, each with how often that makes it; `asked` tells by UID of those that Kerf was asked about.

        The waits double. Namespaces take turns, so that nobody's pods keep others' from being woken.
        """
        before, self._owed = self._owed, {}
        due: dict[str, list[tuple[float, UnboundPod]]] = {}
        for pod in self._pods():
            if not pod.owed or asked(pod.uid):
                continue
            owed = before.get(pod.uid)
            if owed is None or (owed.version != pod.version and not owed.num_wakes):  # a wake changes it, too
                owed = _Owed(pod.version, now)
            self._owed[pod.uid] = owed
            if now >= owed.since + _OVERLOOKED_AFTER_S * 2.0 ** min(owed.num_wakes, 16):
                due.setdefault(pod.namespace, []).append((owed.since, pod))
        in_turn = chain.from_iterable(zip_longest(*(sorted(found, key=lambda one: one[0]) for found in due.values())))
        first = [one[1] for one in in_turn if one is not None][:_MAX_AT_ONCE]
        return [(PodIdentity(pod.namespace, pod.name, pod.uid), self._woken(pod.uid, now)) for pod in first]

    def _woken(self, uid: str, now: float) -> int:
        owed = self._owed[uid]
        owed.since, owed.num_wakes = now, owed.num_wakes + 1
        return owed.num_wakes


_WOKEN: Final = "kerf.dev/woken"
"""How often a pod was woken; the text only has to change."""

_INTERVAL_S: Final = 0.25
_FIRST_WAIT_S: Final = 0.2
_MAX_WAIT_S: Final = 60.0
_FORGOTTEN_AFTER_S: Final = 900.0  # kube-scheduler asks again about every pod within five minutes
_MAX_WAITING: Final = 20_000
_MAX_PER_ROUND: Final = 20
_MAX_LOOKS: Final = 16
"""Kinds of requests looked at in a round: each takes a look at the whole cluster."""
_MAX_DUE: Final = 64
"""Pods of a namespace that a round considers, by precedence and again by the longest time since the last look."""
_CLEAN_UP_S: Final = 10.0
_LOST_INTERVAL_S: Final = 1.0
_EXPLAINED_AGAIN_S: Final = 300.0
_MAX_EXPLANATION: Final = 1_000
_MAX_LARGER: Final = 8
"""Kinds of waiting pods that others are skipped for: each takes a look at the whole cluster in filter."""


@dataclass(slots=True)
class _Waiting:
    pod: PodIdentity
    request: PodRequest
    since: float
    """Monotonic time of the last rejection or wake."""
    num_wakes: int = 0
    first: float = 0.0
    """Monotonic time of the first rejection."""
    explained: str = ""
    """What its annotation says."""
    explained_at: float = float("-inf")
    """Monotonic time of that."""
    looked: float = float("-inf")
    """Monotonic time at which it was last looked whether it fits."""

    def due(self, now: float) -> bool:
        """Whether kube-scheduler has had time to ask again by itself."""
        return now >= self.since + min(_FIRST_WAIT_S * 2.0 ** min(self.num_wakes, 16), _MAX_WAIT_S)


def _precedence(waiting: _Waiting) -> tuple[int, float]:
    return -waiting.request.priority, waiting.since


def _some(due: list[_Waiting]) -> list[_Waiting]:
    """So many of a namespace as a round can do with: those that go first, and those that were looked at longest ago."""
    if len(due) <= 2 * _MAX_DUE:
        return due
    due.sort(key=_precedence)
    return due[:_MAX_DUE] + nsmallest(_MAX_DUE, due[_MAX_DUE:], key=lambda waiting: waiting.looked)


class Waker(Background):
    """Wakes rejected pods in the background, from `start` to `stop`."""

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        transport: Transport,
        ledger: Ledger,
        placer: Placer,
        unbound: UnboundPods,
        clock: Callable[[], float],
        fence: Fence,
        *,
        queue: QueueRules,
        why: Callable[[PodIdentity], str] = lambda pod: "",
        takes_more: Callable[[GpuRequest], bool] = lambda request: False,
        max_skip_s: float = 0.0,
        max_skips: int = _MAX_SKIPS,
        explain_after_s: float = 0.0,
    ) -> None:
        """`why` tells why a pod was rejected last, "" when nobody knows; `takes_more` as of `Skips`.
        `explain_after_s`: so long after its first rejection a pod is told that; 0: never."""
        super().__init__("waker")
        self._transport = transport
        self._ledger = ledger
        self._placer = placer
        self._fence = fence
        self._clock = clock
        self._waiting: FairCache[_Waiting] = FairCache(_MAX_WAITING)
        self._cleaned_up = self._looked_for_lost = float("-inf")
        self._first: tuple[WaitingPod, ...] = ()
        self._queue = queue
        self._why = why
        self.skips = Skips(placer, lambda: self._first, clock, max_skip_s, max_skips, queue, takes_more)
        """Who is left pending although there is room."""
        self._unbound = unbound
        self._overlooked = _Overlooked(unbound.all)
        self._explain_after_s = explain_after_s
        self.num_woken = 0
        """Patches written."""

    @property
    def num_waiting(self) -> int:
        """Rejected pods that are waiting for a node."""
        return len(self._waiting)

    def waiting(self) -> list[tuple[PodIdentity, PodRequest, float]]:
        """Those pods, with the monotonic time of the first rejection."""
        return [(waiting.pod, waiting.request, waiting.first) for waiting in self._waiting.values()]

    def rejected(self, pod: PodIdentity, request: PodRequest) -> None:
        """A pod fitted nowhere; one without a UID is nobody's."""
        known = self._waiting.get(pod.uid)
        if known is not None:
            known.request, known.since = request, self._clock()
        elif pod.uid and pod.name and pod.namespace:
            now = self._clock()
            self._waiting.put(pod.namespace, pod.uid, _Waiting(pod, request, now, first=now), now, weight_of(request))
            self._wait_in_turn(pod.uid, request)

    def pod_changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """A pod without a node was added or has changed; or it is gone, or has its node."""
        if (pod := new or old) is not None and (new is None or new.metadata.deletion_timestamp):
            self.placed(pod.metadata.uid)

    def placed(self, uid: str) -> None:
        """A pod has found its node, or is gone."""
        if self._waiting.pop(uid) is not None and self._first:
            self._first = tuple(waiting for waiting in self._first if waiting.uid != uid)
        self.skips.placed(uid)

    async def run(self) -> None:
        await repeat(self.wake_round, _INTERVAL_S, "a round of waking")

    async def wake_round(self) -> None:
        """Wake the pods that are due and fit somewhere by now, highest priority first, a bounded number at once."""
        if self._fence.standby():
            self._waiting.clear()  # the leader is told of them
            self._first = ()
            return
        now = self._clock()
        if now - self._cleaned_up >= _CLEAN_UP_S:
            self._cleaned_up = now
            self._placer.forget_old()
            await self._wake_overlooked(now)
        if now - self._looked_for_lost >= _LOST_INTERVAL_S:
            self._looked_for_lost = now
            for pod in self._placer.lost.overdue(self._is_refused):
                self.num_woken += await self._annotate(pod, {_WOKEN: f"given a node {now:.0f}"})
        self._first = self._in_turn() if self.skips.enabled else ()
        fits: dict[PodRequest, bool] = {}  # most waiting pods are of few kinds
        woken = 0
        for waiting in self._due(now):
            if waiting.request not in fits:
                if len(fits) == _MAX_LOOKS:
                    continue  # its kind is looked at in a later round
                await asyncio.sleep(0)  # filter and bind go on between two looks
                fits[waiting.request] = self._placer.fits_somewhere(waiting.request)
            waiting.looked = now
            if fits[waiting.request] and not self.skips.holds_back(waiting.pod, waiting.request):
                woken += 1
                await self._wake(waiting)
            if woken == _MAX_PER_ROUND:
                break
        await self._explain_one(now)

    def _due(self, now: float) -> list[_Waiting]:
        """Who may be woken: by priority, then the longest wait, as long as all their kinds can be looked at.

        Else namespaces take turns with their kinds, each with those that were looked at longest ago: whoever makes
        pods of many kinds, or of high priority, has his own wait longer.
        """
        due_in: dict[str, list[_Waiting]] = {}
        for waiting in list(self._waiting.values()):
            claim = self._ledger.claim(waiting.pod.uid)
            if now - waiting.since > _FORGOTTEN_AFTER_S or (claim is not None and claim.state is ClaimState.BOUND):
                self.placed(waiting.pod.uid)  # deleted, or bound by somebody else
            elif waiting.due(now) and not self._queue.will_nominate(waiting.pod.uid):
                due_in.setdefault(waiting.pod.namespace, []).append(waiting)
        due = sorted((waiting for found in due_in.values() for waiting in _some(found)), key=_precedence)
        looked: dict[tuple[str, PodRequest], float] = {}
        for waiting in due:
            kind = waiting.pod.namespace, waiting.request
            looked[kind] = min(looked.get(kind, float("inf")), waiting.looked)
        if len(looked) <= _MAX_LOOKS:
            return due
        turn: dict[tuple[str, PodRequest], int] = {}
        num_of: Counter[str] = Counter()
        for kind in sorted(looked, key=looked.__getitem__):
            turn[kind] = num_of[kind[0]]
            num_of[kind[0]] += 1
        return sorted(due, key=lambda waiting: turn[waiting.pod.namespace, waiting.request])

    def _is_refused(self, uid: str) -> bool:
        """Whether kube-scheduler has found no node for a pod when it tried last."""
        pod = self._unbound.get(uid)
        return pod is not None and pod.refused

    async def _wake_overlooked(self, now: float) -> None:
        """Wake those that nobody has asked about."""

        def asked(uid: str) -> bool:
            return uid in self._waiting or self._ledger.claim(uid) is not None

        for pod, number in self._overlooked.due(now, asked):
            logger.info("pod %s: kube-scheduler seems to have lost it; waking it", pod.key)
            self.num_woken += await self._annotate(pod, {_WOKEN: f"overlooked {number}"})

    async def _explain_one(self, now: float) -> None:
        """Tell one of those that wait why, where that has not been said yet; one in a round, so few ask anew for it."""
        if not self._explain_after_s:
            return
        for waiting in self._waiting.values():
            is_late = now - waiting.first >= self._explain_after_s
            if not is_late or now - waiting.explained_at < _EXPLAINED_AGAIN_S:
                continue
            if self._ledger.claim(waiting.pod.uid) is not None:
                continue  # it has a node, or is about to have one
            waiting.explained_at = now
            notes = self.skips.notes(waiting.pod.uid)
            why = notes.get(SKIPPED) or self._why(waiting.pod)
            if why and why != waiting.explained:
                text = f"pending: {why}"[:_MAX_EXPLANATION]
                if await self._annotate(waiting.pod, {EXPLANATION: text, **notes}):
                    waiting.explained = why
                return

    def _in_turn(self) -> tuple[WaitingPod, ...]:
        """The pods that wait for room, one of each kind of request: highest priority first, then the longest wait."""
        kinds: dict[PodRequest, _Waiting] = {}
        for waiting in self._waiting.values():
            known = kinds.get(waiting.request)
            if not self.skips.was_skipped(waiting.pod.uid) and (known is None or waiting.first < known.first):
                kinds[waiting.request] = waiting
        in_turn = sorted(kinds.values(), key=lambda waiting: (-waiting.request.priority, waiting.first))
        return tuple(WaitingPod(waiting.pod.uid, waiting.request) for waiting in in_turn[:_MAX_LARGER])

    def _wait_in_turn(self, uid: str, request: PodRequest) -> None:
        """Count a new pod among those at once, as the last: a smaller one may be asked about before the next round."""
        is_new = all(waiting.request != request for waiting in self._first)
        if self.skips.enabled and is_new and not self.skips.was_skipped(uid) and len(self._first) < _MAX_LARGER:
            self._first = (*self._first, WaitingPod(uid, request))

    async def _wake(self, waiting: _Waiting) -> None:
        waiting.num_wakes += 1
        waiting.since = self._clock()
        notes = self.skips.notes(waiting.pod.uid)
        self.num_woken += await self._annotate(waiting.pod, {_WOKEN: str(waiting.num_wakes), **notes})

    async def _annotate(self, pod: PodIdentity, annotations: Mapping[str, str]) -> bool:
        """Write, which makes kube-scheduler ask again; whether that succeeded."""
        metadata = {"uid": pod.uid, "annotations": annotations}
        try:
            await self._transport.patch(f"{pod.path}/status", msgspec.json.encode({"metadata": metadata}))
        except ClusterError as error:
            if isinstance(error, ApiError) and error.status in (404, 422):
                self.placed(pod.uid)  # deleted, or another pod of that name: the UID can't be changed
            else:
                logger.warning("pod %s: %s was not written: %s", pod.key, ", ".join(annotations), error)
            return False
        return True
