"""How pods with GPUs do on their nodes, from what the watch tells of them.

The watch leaves finished pods out, so of one that is gone soon after its start nobody says how it ended: it is read,
once, and only while this process leads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.kube.objects import unix_time
from extender.plugins.pods import owner_of
from extender.scheduling.fair_cache import FairCache
from extender.scheduling.setting_aside.alike import AlikeNodes
from extender.scheduling.setting_aside.early_ends import early_failure, has_restarted, runs
from extender.scheduling.setting_aside.failures import Failure, Failures

_MAX_ENDED: Final = 1_000
"""Pods that are to be read."""
_MAX_READ: Final = 10
"""In a round."""
_decoder: Final = Decoder(objects.Pod)


@dataclass(slots=True)
class _Life:
    """A pod on its node, as far as it is known."""

    uid: str
    namespace: str
    name: str
    workload: str
    node: str
    started: float
    """Monotonic time at which its kubelet took it, as far as that is told."""
    runs_since: float | None = None
    """Monotonic time."""
    settled: bool = False
    """Whether it was found to live well."""
    failed: bool = False
    """Whether it was found to fail: once for each pod."""


class Lives:
    """Of pods with a node."""

    def __init__(
        self,
        transport: Transport,
        failures: Failures,
        nodes: AlikeNodes,
        has_gpus: Callable[[objects.Pod], bool],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        *,
        early_s: float,
        window_s: float,
    ) -> None:
        self._transport, self._failures, self._nodes, self._has_gpus = transport, failures, nodes, has_gpus
        self._clock, self._wall_clock = clock, wall_clock
        self._early_s, self._window_s = early_s, window_s
        self._of: dict[str, _Life] = {}  # by UID
        self._young: set[str] = set()  # those of whom it is not known yet how they do
        self._ended: FairCache[_Life] = FairCache(_MAX_ENDED)
        self.num_failed = 0
        """Pods that failed soon after their start, whoever is to blame."""

    # What the watch tells

    def changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """A pod with a node was added or has changed; or it is gone, or has finished."""
        if new is not None:
            self._upsert(new)
        elif old is not None:
            life = self._forget(old.metadata.uid)
            if life is not None and not old.metadata.deletion_timestamp:  # else its end says nothing
                self._end(life)

    def _upsert(self, item: objects.Pod) -> None:
        uid = item.metadata.uid
        life = self._of.get(uid)
        if life is None:
            if not self._has_gpus(item):
                return
            life = self._of[uid] = self._life(item)
            self._ended.pop(uid)  # it is there again, in a cluster that was restored
            self._young.add(uid)
        if not life.settled or has_restarted(item):
            if not runs(item):
                life.runs_since = None
            elif life.runs_since is None:
                life.runs_since = self._clock()
            self._judge(life, item)

    # What is made of it

    def age(self) -> None:
        """Find out who has lived well by now."""
        now = self._clock()
        for uid in list(self._young):
            life = self._of[uid]
            if self._has_run(life, now):
                self._settle(life)

    def forget_ended(self) -> None:
        """Nobody is to be read: another process leads."""
        self._ended.clear()

    async def read_ended(self) -> None:
        """Read some of those that are gone, as long as they are there."""
        self._ended.expire(self._clock() - self._window_s)
        for life in list(islice(self._ended.in_turn(), _MAX_READ)):
            try:
                path = f"/api/v1/namespaces/{life.namespace}/pods/{life.name}"
                pod = _decoder.decode(await self._transport.get(path))
            except (ApiError, msgspec.DecodeError):
                self._ended.pop(life.uid)  # it is gone, or nobody can say how it ended
            except ClusterError:
                return
            else:
                self._ended.pop(life.uid)
                if (pod.metadata.uid, pod.spec.node_name) == (life.uid, life.node):
                    self._judge(life, pod)

    def _life(self, pod: objects.Pod) -> _Life:
        metadata, now = pod.metadata, self._clock()
        taken = unix_time(pod.status.start_time)
        started = now - max(self._wall_clock() - taken, 0.0) if taken else now
        return _Life(
            uid=metadata.uid,
            namespace=metadata.namespace,
            name=metadata.name,
            workload=owner_of(metadata),
            node=pod.spec.node_name or "",
            started=started,
        )

    def _has_run(self, life: _Life, now: float) -> bool:
        return life.runs_since is not None and now - life.runs_since >= self._early_s

    def _judge(self, life: _Life, pod: objects.Pod) -> None:
        if pod.status.phase == "Succeeded":
            self._settle(life)
        elif not life.failed and early_failure(pod, self._early_s, self._wall_clock(), self._window_s):
            life.failed, life.settled = True, False
            self.num_failed += 1
            failure = Failure(life.uid, life.namespace, life.workload, self._clock())
            self._failures.failed(life.node, failure, counts=not self._nodes.chosen_by(pod, life.node))
            if life.uid in self._of:
                self._young.add(life.uid)

    def _settle(self, life: _Life) -> None:
        """It lives well, or has ended well; one that had failed is as young as its last start."""
        life.settled = True
        self._young.discard(life.uid)
        started = life.runs_since if life.failed and life.runs_since is not None else life.started
        self._failures.lived(life.node, life.namespace, life.workload, started, self._clock())

    def _end(self, life: _Life) -> None:
        """Of who has lived well, or is known to have failed, there is nothing to find out."""
        now = self._clock()
        if self._has_run(life, now) and not life.settled:
            self._settle(life)
        elif not life.settled and not life.failed:
            self._ended.put(life.namespace, life.uid, life, now)

    def _forget(self, uid: str) -> _Life | None:
        self._young.discard(uid)
        return self._of.pop(uid, None)
