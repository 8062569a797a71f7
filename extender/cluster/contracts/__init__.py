"""Contracts with other device plugins: how they write a node's GPUs and a pod's devices.

A contract is a module with functions for the lists below, which are asked in their order; the first that understands an
object answers for it. What a pod holds is asked of its node's plugin alone: what another one's keys say counts for
nothing there. A function that finds its own keys but can't read them raises UnreadableError: what is concerned is
treated as taken then. `extender.cluster.inventories` and `extender.cluster.pods` ask before they look
at plain resources, and after Kerf's own annotations.
"""

from collections.abc import Mapping
from typing import Final

from extender.cluster.contracts.readers import (
    Plugin,
    gpushare_holding,
    gpushare_offer,
    gpushare_request,
    hami_holding,
    hami_offer,
    hami_request,
)
from extender.cluster.contracts.readings import ReadHolding, ReadOffer, ReadRequest

OFFER_READERS: Final[tuple[ReadOffer, ...]] = (hami_offer, gpushare_offer)
HOLDING_READERS: Final[Mapping[Plugin, ReadHolding]] = {
    Plugin.HAMI: hami_holding,
    Plugin.HAMI_WITHOUT_INIT: hami_holding,
    Plugin.GPUSHARE: gpushare_holding,
}
REQUEST_READERS: Final[tuple[ReadRequest, ...]] = (hami_request, gpushare_request)
