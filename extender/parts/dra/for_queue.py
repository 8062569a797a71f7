"""The device allocator of one queue."""

from extender.parts.dra.keeper import ClaimKeeper
from extender.parts.dra.reclaimer import Reclaimer
from extender.parts.dra.selection import PodSelector
from extender.queueing.devices import AllocatorParts


def allocating(keeper: ClaimKeeper) -> AllocatorParts:
    """The allocator with the background tasks of a keeper."""
    maker = {"claims for extended resources": keeper.maker().run} if keeper.classes_to_make else {}
    works = {"queue's ResourceClaims": Reclaimer(keeper).run, **maker}
    return AllocatorParts(keeper, PodSelector(keeper, keeper.dirty), works)
