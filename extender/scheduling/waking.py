"""Waking pending pods, so that kube-scheduler retries them.

kube-scheduler retries a rejected pod on cluster events only, and may retry too early. When a pod ends, it may call
filter before Kerf's watch has reported the end: the pod is rejected again, and nothing happens for up to five minutes.
A sampled candidate list hides nodes in the same way. So while Kerf knows a node that fits, it wakes a rejected pod at
growing intervals: a metadata change makes kube-scheduler retry at once. The patch goes to `pods/status`, so that Kerf
needs no right to change a pod's spec.

A pod that keeps waiting gets the reason as an annotation now and then, which also makes kube-scheduler retry.

Overlooked pods are woken as well. An unbound pod that was not rejected is in kube-scheduler's queue and is retried
seconds after an error. But a pod that was deleted and created again under its name while kube-scheduler was
disconnected may be in none of its queues (1.37: the old pod takes its place there and leaves none behind). It is
retried only when it changes, so Kerf wakes pods that neither change nor are asked about.
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
from extender.ledger.ledger import AllocationState, Ledger
from extender.plugins.kerf import EXPLANATION
from extender.scheduling.fair_cache import FairCache
from extender.scheduling.fence import Fence
from extender.scheduling.placer import Placer, PodIdentity, weight_of
from extender.scheduling.queue_rules import QueueRules
from extender.scheduling.skips import SKIPPED, Skips, WaitingPod
from extender.scheduling.unbound_pods import UnboundPod, UnboundPods

logger = logging.getLogger(__name__)

_MAX_SKIPS: Final = 20
"""Most times that a pod is left pending for others."""
_OVERLOOKED_AFTER_S: Final = 45.0
"""Longer than kube-scheduler backs off after an error, 10 s by default."""
_MAX_AT_ONCE: Final = 20


@dataclass(slots=True)
class _Owed:
    """A pod that kube-scheduler should try."""

    version: str
    since: float
    """Monotonic time of its last change or wake."""
    num_wakes: int = 0


class _Overlooked:
    """Finds pods that kube-scheduler seems to have lost."""

    def __init__(self, pods: Callable[[], Iterable[UnboundPod]]) -> None:
        """`pods` returns all unbound pods."""
        self._pods = pods
        self._owed: dict[str, _Owed] = {}

    def due(self, now: float, asked: Callable[[str], bool]) -> list[tuple[PodIdentity, int]]:
        """Return the pods to wake now, each with its number of wakes.

        `asked` returns by UID whether kube-scheduler has asked Kerf about a pod. The waits double; namespaces take
        turns, so that no namespace's pods keep others from being woken.
        """
        before, self._owed = self._owed, {}
        due: dict[str, list[tuple[float, UnboundPod]]] = {}
        for pod in self._pods():
            if not pod.owed or asked(pod.uid):
                continue
            owed = before.get(pod.uid)
            if owed is None or (owed.version != pod.version and not owed.num_wakes):  # a wake changes the version, too
                owed = _Owed(pod.version, now)
            self._owed[pod.uid] = owed
            if now >= owed.since + _OVERLOOKED_AFTER_S * 2.0 ** min(owed.num_wakes, 16):
                due.setdefault(pod.namespace, []).append((owed.since, pod))
        by_age = (sorted(pods, key=lambda pair: pair[0]) for pods in due.values())
        in_turn = chain.from_iterable(zip_longest(*by_age))
        first = [pair[1] for pair in in_turn if pair is not None][:_MAX_AT_ONCE]
        return [(PodIdentity(pod.namespace, pod.name, pod.uid), self._count_wake(pod.uid, now)) for pod in first]

    def _count_wake(self, uid: str, now: float) -> int:
        owed = self._owed[uid]
        owed.since, owed.num_wakes = now, owed.num_wakes + 1
        return owed.num_wakes


_WOKEN: Final = "kerf.dev/woken"
"""Annotation with the number of wakes; its value only has to change."""

_INTERVAL_S: Final = 0.25
_FIRST_WAIT_S: Final = 0.2
_MAX_WAIT_S: Final = 60.0
_FORGOTTEN_AFTER_S: Final = 900.0  # kube-scheduler retries every pod within five minutes
_MAX_WAITING: Final = 20_000
_MAX_PER_ROUND: Final = 20
_MAX_LOOKS: Final = 16
"""Distinct requests evaluated in a round, each on the whole cluster."""
_MAX_DUE: Final = 64
"""Pods of a namespace that a round considers by precedence, and as many again that were evaluated longest ago."""
_CLEAN_UP_S: Final = 10.0
_LOST_INTERVAL_S: Final = 1.0
_EXPLAINED_AGAIN_S: Final = 300.0
_MAX_EXPLANATION: Final = 1_000
_MAX_LARGER: Final = 8
"""Distinct waiting requests for which others are skipped: filter evaluates each on the whole cluster."""


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
    """The reason in its annotation."""
    explained_at: float = float("-inf")
    """Monotonic time of that."""
    looked: float = float("-inf")
    """Monotonic time at which its fit was last evaluated."""

    def due(self, now: float) -> bool:
        """Whether kube-scheduler has had time to retry by itself."""
        return now >= self.since + min(_FIRST_WAIT_S * 2.0 ** min(self.num_wakes, 16), _MAX_WAIT_S)


def _precedence(waiting: _Waiting) -> tuple[int, float]:
    return -waiting.request.priority, waiting.since


def _some(due: list[_Waiting]) -> list[_Waiting]:
    """Return those pods of a namespace that a round considers, as `_MAX_DUE` says."""
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
        wastes_gpu: Callable[[GpuRequest], bool] = lambda request: False,
        max_skip_s: float = 0.0,
        max_skips: int = _MAX_SKIPS,
        explain_after_s: float = 0.0,
    ) -> None:
        """`why` returns why a pod was rejected last, "" if unknown; `wastes_gpu` as in `Skips`.
        `explain_after_s` after its first rejection a pod is annotated with the reason; 0: never."""
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
        self.skips = Skips(placer, lambda: self._first, clock, max_skip_s, max_skips, queue, wastes_gpu)
        """The pods left pending although there is room."""
        self._unbound = unbound
        self._overlooked = _Overlooked(unbound.all)
        self._explain_after_s = explain_after_s
        self.num_woken = 0
        """Patches written."""

    @property
    def num_waiting(self) -> int:
        """Rejected pods that wait for a node."""
        return len(self._waiting)

    def waiting(self) -> list[tuple[PodIdentity, PodRequest, float]]:
        """Return the rejected pods, with their requests and the monotonic times of their first rejections."""
        return [(waiting.pod, waiting.request, waiting.first) for waiting in self._waiting.values()]

    def rejected(self, pod: PodIdentity, request: PodRequest) -> None:
        """Note that a pod fitted nowhere; a pod without a UID is ignored."""
        known = self._waiting.get(pod.uid)
        if known is not None:
            known.request, known.since = request, self._clock()
        elif pod.uid and pod.name and pod.namespace:
            now = self._clock()
            self._waiting.put(pod.namespace, pod.uid, _Waiting(pod, request, now, first=now), now, weight_of(request))
            self._append_to_first(pod.uid, request)

    def pod_changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """Handle a change of an unbound pod; `new` is None once it is bound or gone."""
        if (pod := new or old) is not None and (new is None or new.metadata.deletion_timestamp):
            self.placed(pod.metadata.uid)

    def placed(self, uid: str) -> None:
        """Forget a pod that has a node or is gone."""
        if self._waiting.pop(uid) is not None and self._first:
            self._first = tuple(waiting for waiting in self._first if waiting.uid != uid)
        self.skips.placed(uid)

    async def run(self) -> None:
        await repeat(self.wake_round, _INTERVAL_S, "a round of waking")

    async def wake_round(self) -> None:
        """Wake a bounded number of pods that are due and fit somewhere now, highest priority first."""
        if self._fence.standby():
            self._waiting.clear()  # kube-scheduler asks the leader about them
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
        self._first = self._first_of_each_request() if self.skips.enabled else ()
        fits: dict[PodRequest, bool] = {}  # most waiting pods share few distinct requests
        woken = 0
        for waiting in self._due(now):
            if waiting.request not in fits:
                if len(fits) == _MAX_LOOKS:
                    continue  # evaluated in a later round
                await asyncio.sleep(0)  # let filter and bind run
                fits[waiting.request] = self._placer.fits_somewhere(waiting.request)
            waiting.looked = now
            if fits[waiting.request] and not self.skips.holds_back(waiting.pod, waiting.request):
                woken += 1
                await self._wake(waiting)
            if woken == _MAX_PER_ROUND:
                break
        await self._explain_one(now)

    def _due(self, now: float) -> list[_Waiting]:
        """Return the pods to wake by priority, then the longest wait, if a round can evaluate all their requests.

        Else namespaces take turns with their distinct requests, those evaluated longest ago first: a namespace with
        many distinct requests, or pods of high priority, delays only its own pods.
        """
        due_in: dict[str, list[_Waiting]] = {}
        for waiting in list(self._waiting.values()):
            held = self._ledger.allocation(waiting.pod.uid)
            if now - waiting.since > _FORGOTTEN_AFTER_S or (held is not None and held.state is AllocationState.BOUND):
                self.placed(waiting.pod.uid)  # deleted, or bound by another client
            elif waiting.due(now) and not self._queue.will_nominate(waiting.pod.uid):
                due_in.setdefault(waiting.pod.namespace, []).append(waiting)
        due = sorted((waiting for pods in due_in.values() for waiting in _some(pods)), key=_precedence)
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
        """Whether kube-scheduler found no node for a pod in its last try."""
        pod = self._unbound.get(uid)
        return pod is not None and pod.refused

    async def _wake_overlooked(self, now: float) -> None:
        """Wake the pods that kube-scheduler seems to have lost."""

        def asked(uid: str) -> bool:
            return uid in self._waiting or self._ledger.allocation(uid) is not None

        for pod, number in self._overlooked.due(now, asked):
            logger.info("pod %s: kube-scheduler seems to have lost it; waking it", pod.key)
            self.num_woken += await self._annotate(pod, {_WOKEN: f"overlooked {number}"})

    async def _explain_one(self, now: float) -> None:
        """Annotate one waiting pod with its reason, if new: one in a round, since each makes kube-scheduler retry."""
        if not self._explain_after_s:
            return
        for waiting in self._waiting.values():
            is_late = now - waiting.first >= self._explain_after_s
            if not is_late or now - waiting.explained_at < _EXPLAINED_AGAIN_S:
                continue
            if self._ledger.allocation(waiting.pod.uid) is not None:
                continue  # it has a node, or will soon
            waiting.explained_at = now
            notes = self.skips.notes(waiting.pod.uid)
            why = notes.get(SKIPPED) or self._why(waiting.pod)
            if why and why != waiting.explained:
                text = f"pending: {why}"[:_MAX_EXPLANATION]
                if await self._annotate(waiting.pod, {EXPLANATION: text, **notes}):
                    waiting.explained = why
                return

    def _first_of_each_request(self) -> tuple[WaitingPod, ...]:
        """Return the longest waiting pod of each distinct request, by priority, then wait, up to `_MAX_LARGER`."""
        kinds: dict[PodRequest, _Waiting] = {}
        for waiting in self._waiting.values():
            known = kinds.get(waiting.request)
            if not self.skips.was_skipped(waiting.pod.uid) and (known is None or waiting.first < known.first):
                kinds[waiting.request] = waiting
        ordered = sorted(kinds.values(), key=lambda waiting: (-waiting.request.priority, waiting.first))
        return tuple(WaitingPod(waiting.pod.uid, waiting.request) for waiting in ordered[:_MAX_LARGER])

    def _append_to_first(self, uid: str, request: PodRequest) -> None:
        """Count a new pod at once, as the last: filter may see a smaller one before the next round."""
        is_new = all(waiting.request != request for waiting in self._first)
        if self.skips.enabled and is_new and not self.skips.was_skipped(uid) and len(self._first) < _MAX_LARGER:
            self._first = (*self._first, WaitingPod(uid, request))

    async def _wake(self, waiting: _Waiting) -> None:
        waiting.num_wakes += 1
        waiting.since = self._clock()
        notes = self.skips.notes(waiting.pod.uid)
        self.num_woken += await self._annotate(waiting.pod, {_WOKEN: str(waiting.num_wakes), **notes})

    async def _annotate(self, pod: PodIdentity, annotations: Mapping[str, str]) -> bool:
        """Write annotations, which makes kube-scheduler retry the pod; return whether that succeeded."""
        metadata = {"uid": pod.uid, "annotations": annotations}
        try:
            await self._transport.patch(f"{pod.path}/status", msgspec.json.encode({"metadata": metadata}))
        except ClusterError as error:
            if isinstance(error, ApiError) and error.status in (404, 422):
                self.placed(pod.uid)  # deleted, or another pod of that name: a UID is immutable
            else:
                logger.warning("pod %s: %s was not written: %s", pod.key, ", ".join(annotations), error)
            return False
        return True
