"""Pods that have a node, as far as moving them goes: read from the API server's lists page by page."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from extender.core.annotations import read_priority
from extender.core.resources.requests import RequestError
from extender.kube import objects
from extender.kube.decoding import Decoder, outline
from extender.kube.objects import Pod, unix_time
from extender.kube.stand_ins import stand_in
from extender.ledger.tenants import DemandingPod, Demands

UNREADABLE: Final = "it can't be read"


class Resident(NamedTuple):
    """A pod."""

    pod: Pod
    demands: Demands | None
    """What else than resources it wants of a node; None where that can't be read."""
    fault: str = ""
    """Why it can't be told what it is, "" where it can: another pod stands in for it."""
    start_s: float | None = None
    """Seconds from its having a node until it was ready, as its status tells them."""


class _Condition(objects.Object, rename="camel"):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class _Status(objects.Object):
    conditions: list[_Condition] | None = None


class _Rest(DemandingPod):
    """What few ask of a pod."""

    status: _Status = msgspec.field(default_factory=_Status)


_items: Final = Decoder(objects.ObjectList[msgspec.Raw])
_pods: Final = Decoder(Pod)
_rests: Final = Decoder(_Rest)


def residents(page: bytes) -> Iterator[Resident]:
    """The pods of a page, whatever is in them; those that have ended are left out."""
    for item in _items.decode(page).items or ():
        try:
            pod = _pods.decode(item)
        except msgspec.DecodeError:
            pod = stand_in(outline(item), Pod)
            if not pod.finished:
                yield Resident(pod, None, UNREADABLE)
            continue
        if not pod.finished:
            yield _resident(pod, item)


def _resident(pod: Pod, item: msgspec.Raw) -> Resident:
    try:
        rest = _rests.decode(item)
    except msgspec.DecodeError:
        return Resident(pod, None)
    return Resident(pod, rest.spec, start_s=_start_s(rest.status.conditions or ()))


def _start_s(conditions: Iterable[_Condition]) -> float | None:
    since = {item.type: unix_time(item.last_transition_time) for item in conditions if item.status == "True"}
    placed, ready = since.get("PodScheduled", 0.0), since.get("Ready", 0.0)
    return max(ready - placed, 0.0) if placed and ready else None  # clocks of several machines


def priority_at_least(pod: Pod) -> int:
    """The higher of what a pod's class and its label say: who is moved may say that it matters more."""
    of_class = pod.spec.priority or 0
    try:
        return max(read_priority(pod.metadata.labels or {}, of_class), of_class)
    except RequestError:
        return of_class


def priority_at_most(pod: Pod) -> int:
    """The lower of the two: nobody makes others leave by a label, which anyone may write on a pod of theirs."""
    of_class = pod.spec.priority or 0
    try:
        return min(read_priority(pod.metadata.labels or {}, of_class), of_class)
    except RequestError:
        return of_class
