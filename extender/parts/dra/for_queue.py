"""All that allocates devices for one queue."""

from extender.parts.dra.keeper import ClaimKeeper
from extender.parts.dra.reclaimer import Reclaimer
from extender.parts.dra.turns import Turns
from extender.queueing.devices import AllocatesDevices


def allocating(keeper: ClaimKeeper) -> AllocatesDevices:
    """By a keeper, with what goes on beside it."""
    made = {"claims for extended resources": keeper.maker().run} if keeper.classes_to_make else {}
    works = {"queue's ResourceClaims": Reclaimer(keeper).run, **made}
    return AllocatesDevices(keeper, Turns(keeper, keeper.dirty), works)
