"""Pods that have a node, as far as moving them goes: read from the API server's lists page by page."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from extender.core.annotations import read_priority
from extender.core.resources.requests import RequestError
from extender.kube import objects
from extender.kube.decoding import Decoder, outline
from extender.kube.objects import Pod
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


_items: Final = msgspec.json.Decoder(objects.ObjectList[msgspec.Raw])
_pods: Final = Decoder(Pod)
_demands: Final = Decoder(DemandingPod)


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
            yield Resident(pod, _read_demands(item))


def _read_demands(item: msgspec.Raw) -> Demands | None:
    try:
        return _demands.decode(item).spec
    except msgspec.DecodeError:
        return None


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
