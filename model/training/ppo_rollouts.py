"""Where episodes are played: in this process, or by workers of a Ray cluster; the same episodes either way.

What a worker needs is plain arrays: it runs the actor in NumPy, and neither it nor the wire knows torch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from extender.core.clusters import Floats
from extender.core.valuenet.attention import Attention
from model.training import ppo_episodes
from model.training.ppo_episodes import Episode, Source


class Order(NamedTuple):
    """A scene to be played: equal orders give equal episodes."""

    source: int
    seed: tuple[int, ...]
    num_nodes: int
    num_steps: int
    times: int


Play = Callable[[Sequence[Order], Attention, Floats], list[list[Episode]]]
"""Orders, the actor, and sigma (D,), to the episodes of each order."""


def play(drawn_from: Source, order: Order, actor: Attention, sigma: Floats) -> list[Episode]:
    """Play one scene so many times: what is tried the first time is tried the other way the second time, and so on."""
    rng = np.random.default_rng(order.seed)
    drawn = ppo_episodes.scene(drawn_from, order.num_nodes, order.num_steps, rng)
    away = sigma * np.repeat(rng.normal(size=(order.times // 2, len(drawn.ends), len(sigma))), 2, axis=0)
    away[1::2] *= -1
    return [ppo_episodes.episode(drawn, actor, offset) for offset in away]


def here(sources: Sequence[Source]) -> Play:
    """In this process, one after the other."""
    return lambda orders, actor, sigma: [play(sources[order.source], order, actor, sigma) for order in orders]


def on_ray(sources: Sequence[Source], address: str) -> Play:
    """By the workers of a Ray cluster: its address, or `local` for one on this machine.

    Raises ModuleNotFoundError where Ray is not installed (`kerf[ray]`), ConnectionError when there is no cluster.
    """
    import ray  # noqa: PLC0415 - an extra of its own

    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)
    known = [ray.put(drawn_from) for drawn_from in sources]
    remote: Any = ray.remote(play)

    def played(orders: Sequence[Order], actor: Attention, sigma: Floats) -> list[list[Episode]]:
        sent, spread = ray.put(actor), ray.put(sigma)
        found: list[list[Episode]] = ray.get([remote.remote(known[o.source], o, sent, spread) for o in orders])
        return found

    return played
