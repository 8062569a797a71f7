"""What moves the policy could have made, and which of them are the best."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from extender.explain.defrag.applying import target_of
from extender.explain.defrag.room_answers import RoomAnswer
from extender.explain.defrag_policy.waits import Wait
from extender.planning.moves.gains import is_worth
from extender.queueing.defrag.state import Advice

ROOM, HEAL, FREE_NODES = "room", "heal", "free-nodes"
PURPOSES: Final = (ROOM, HEAL, FREE_NODES)


@dataclass(frozen=True, slots=True)
class Option:
    """A plan that could be carried out."""

    purpose: str
    """ROOM, HEAL or FREE_NODES."""
    answer: RoomAnswer
    gain_gpu_s: float = 0.0
    """Not asked for where pods leave sick GPUs."""
    wait: Wait | None = None
    """For whom it makes room."""

    @property
    def net_gpu_s(self) -> float:
        """GPU-seconds gained beyond those lost."""
        return self.gain_gpu_s - self.answer.cost_gpu_s

    def pays(self, least_gain: float) -> bool:
        """Whether it gains so many times what it loses."""
        return is_worth(self.gain_gpu_s, self.answer.cost_gpu_s, least_gain)

    def advice(self, at: float, why_not: str) -> Advice:
        """The same in words."""
        answer = self.answer
        return Advice(
            purpose=self.purpose,
            target=target_of(answer),
            plan=answer.id,
            moves=len(answer.moves),
            gain_gpu_s=round(self.gain_gpu_s, 1),
            cost_gpu_s=answer.cost_gpu_s,
            at=round(at),
            why_not=why_not,
        )


def best_first(options: Iterable[Option]) -> list[Option]:
    """First the one that gains most beyond what it loses; of equal ones the one with the fewest moves."""
    return sorted(options, key=lambda option: (-option.net_gpu_s, len(option.answer.moves)))
