"""Who counts GPU-hours hears of pods and nodes by the holders, of which the kernel has an account."""

from collections.abc import Sequence
from typing import Final

from tests.kube.consumers.table import Consumer

CONSUMERS: Final[Sequence[type[Consumer]]] = ()
LEFT_OUT: Final = {"extender/parts/usage/part.py: meter.holders.subscribe(base.mirror.hub)": "see `HoldersAccount`"}
