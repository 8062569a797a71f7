"""Telling those who wait that moves would help: in an event of theirs, once for each plan and not too often."""

from typing import Final

from extender.explain.defrag_policy.options import Option
from extender.kube.events import EventRecorder
from extender.scheduling.fair_cache import FairCache

_TOLD_EVERY_S: Final = 3600.0
_MOST_KEPT: Final = 4_000
_MOST_PODS: Final = 8
"""Of a gang that hear of it."""


class Teller:
    """Writes events; of whom it has told what is kept, bounded."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._told: FairCache[float] = FairCache(_MOST_KEPT)

    def tell(self, option: Option, now: float) -> None:
        """Tell a target's pods, unless they have heard of it lately. Nothing is said of whose pods would move."""
        wait, answer = option.wait, option.answer
        if wait is None:
            return
        told_at = self._told.get(wait.name)
        if told_at is not None and now - told_at < _TOLD_EVERY_S:
            return
        self._told.put(wait.namespace, wait.name, now, now)
        moves = f"{len(answer.moves)} pod{'' if len(answer.moves) == 1 else 's'} moved"
        message = f"It would fit if {moves}, which loses {answer.cost_gpu_s:.0f} GPU-seconds of work"
        for pod in answer.target[:_MOST_PODS]:
            if pod.uid:
                namespace, _, name = pod.pod.partition("/")
                how = f"{message}: kerf defrag --for {wait.name}"
                self._events.emit(namespace, name, pod.uid, reason="MovesWouldHelp", message=how)
