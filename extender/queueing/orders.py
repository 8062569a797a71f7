"""In which order pods that wait are looked at: priority, then age; or, where wanted, shortest expected first."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

_UNKNOWN_S: Final = float("inf")


class Order(StrEnum):
    """How equals in priority are ordered."""

    FIFO = "fifo"
    SHORTEST = "shortest"
    """By expected duration; what nothing is known of comes last, by age."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod, or a gang, that waits."""

    key: str
    priority: int
    since: float
    """Unix time of its creation: restarts don't change the order."""
    expected_s: float = field(default=_UNKNOWN_S)
    """How long it is expected to run, inf when nothing is known."""
    owner: str = ""
    """Namespace, for fair share."""
    share: float = 0.0
    """GPUs asked, a gang's all together, over the weight of its namespace."""


def effective_priority(waiting: Waiting, now: float, ageing_s: float) -> float:
    """Priority and one more for each `ageing_s` seconds of waiting, so that nobody waits for ever; 0 for no ageing."""
    return waiting.priority + (max(0.0, now - waiting.since) // ageing_s if ageing_s > 0 else 0.0)


def ordered(
    waiting: Sequence[Waiting],
    now: float,
    *,
    order: Order = Order.FIFO,
    ageing_s: float = 0.0,
    shares: dict[str, float] | None = None,
) -> list[Waiting]:
    """Highest effective priority first; among equals the namespace with the smallest share, then as `order` says.

    `shares` gives each namespace's GPUs in use over its weight; each pod taken counts for its namespace at once, so
    that a burst of one does not go before the first of another. None for no fair share.
    """

    def rank(item: Waiting) -> tuple[float, float, float, str]:
        expected = item.expected_s if order is Order.SHORTEST else 0.0
        return (-effective_priority(item, now, ageing_s), expected, item.since, item.key)

    in_order = sorted(waiting, key=rank)
    if shares is None:
        return in_order
    result: list[Waiting] = []
    used = dict(shares)
    begin = 0
    while begin < len(in_order):
        level = effective_priority(in_order[begin], now, ageing_s)
        end = begin
        queues: dict[str, list[Waiting]] = {}
        while end < len(in_order) and effective_priority(in_order[end], now, ageing_s) == level:
            queues.setdefault(in_order[end].owner, []).append(in_order[end])
            end += 1
        result += _by_share(queues, used)
        begin = end
    return result


def _by_share(queues: dict[str, list[Waiting]], used: dict[str, float]) -> list[Waiting]:
    result: list[Waiting] = []
    heads = dict.fromkeys(queues, 0)
    while heads:
        owner = min(heads, key=lambda name: (used.get(name, 0.0), queues[name][heads[name]].since, name))
        item = queues[owner][heads[owner]]
        result.append(item)
        used[owner] = used.get(owner, 0.0) + max(item.share, 1e-3)
        heads[owner] += 1
        if heads[owner] == len(queues[owner]):
            del heads[owner]
    return result
