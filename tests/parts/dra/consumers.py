"""What allocates devices hears of: nothing that the account of pods, nodes and namespaces has."""

from collections.abc import Sequence
from typing import Final

from tests.kube.consumers.table import Consumer

CONSUMERS: Final[Sequence[type[Consumer]]] = ()
LEFT_OUT: Final = {
    "extender/parts/dra/keeper.py: hub.cache(feed).subscribe"
    "(self._claim_changed if feed is CLAIMS else self._inputs_changed, on_list=self._inputs_changed)": (
        "of ResourceClaims and devices"
    ),
}
