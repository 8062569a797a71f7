"""What the agent hears of, in a process of its own."""

from collections.abc import Sequence
from typing import Final

from tests.kube.consumers.table import Consumer

CONSUMERS: Final[Sequence[type[Consumer]]] = ()
LEFT_OUT: Final = {"extender/parts/agent/pods.py: self.subscribe(self._changed)": "of the pods of its own node"}
