"""Episodes played to learn from: in processes of this machine, or by workers of a Ray cluster; the same either way."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from extender.core.clusters import Floats, Longs
from extender.core.valuenet import attention
from model.simulations.configs import EpisodeConfig
from model.simulations.episodes import Episodes
from model.simulations.scenarios import LIFETIMES, Scenario, scenario_of
from model.training import nets
from model.training.nets import Choice, Seen
from model.workloads.sources import named

OF_DECISION: Final = ("nodes", "cluster", "offered")
"""Fields of Seen that each decision has its own of."""

Arrays = dict[str, npt.NDArray[Any]]


class Order(NamedTuple):
    """Episodes of one scenario: equal orders give equal ones."""

    name: str
    """Trace, or `mix:KIND`."""
    form: EpisodeConfig
    scenario: tuple[int, ...]
    """Seed of the cluster, and of a mix."""
    seed: tuple[int, ...]
    """Of the arrivals, and of what is tried."""
    lists: int
    """Different arrivals."""
    times: int
    """That each is played."""
    temperature: float
    """Of the choice among nodes, in quanta."""
    skip: bool
    lifetimes: bool
    keep: int
    """Decisions that are learned from, at most, of those made."""


class Played(NamedTuple):
    """What became of an order: E episodes, P arrivals, S decisions that are learned from."""

    rewards: Floats
    """(E, P + 1) earned between one arrival and the next, percentage points of the capacity."""
    values: Floats
    """(E, P + 1) what the critic expected then, nan where nothing was decided."""
    decisions: Arrays
    """By name, each (S, ...): fields of Seen and Choice, `action`, `log_probability`, `value`, `episode`, `clock`."""
    pods: Floats
    """(K, len(POD_FEATURES)) expected."""
    frequency: Floats
    """(K,)."""
    context: Floats
    """(len(CONTEXT),)."""
    told: dict[str, float]
    """Means over the episodes of what `Episodes.told` tells."""


Play = Callable[[Sequence[Order], dict[str, Floats]], list[Played]]
"""Orders and the nets' arrays, to what became of each."""


def _play(directory: Path | None, order: Order, arrays: dict[str, Floats]) -> Played:
    """Play one order, drawing among the best nodes and the skip."""
    torch.set_num_threads(1)
    tensors = nets.tensors_of(arrays, tuple(arrays))
    rng = np.random.default_rng(order.seed)
    seeds = np.repeat(rng.integers(1 << 62, size=order.lists), order.times)
    episodes = _begun(directory, order, tensors, seeds)
    chance = torch.Generator().manual_seed(int(rng.integers(1 << 62)))
    rewards = np.zeros((len(seeds), episodes.num_pods + 1))
    values = np.full(rewards.shape, np.nan)
    rows: list[Arrays] = []
    while not episodes.over.all():
        playing = np.flatnonzero(~episodes.over)
        seen, choice, nodes = _look(episodes, playing, order, tensors)
        with torch.no_grad():
            known = nets.contexts(seen, tensors)
            logit = nets.logits(choice, seen, known, tensors, order.temperature)
            value = nets.values(seen, known, tensors).numpy()
        odds = torch.log_softmax(logit, dim=1)
        action = torch.multinomial(odds.exp(), 1, generator=chance)
        clock = episodes.clock[playing]
        values[playing, clock] = np.where(np.isnan(values[playing, clock]), value, values[playing, clock])
        rows.append(
            {
                **{name: getattr(seen, name).numpy() for name in OF_DECISION},
                **{name: part.numpy() for name, part in choice._asdict().items()},
                "action": action[:, 0].numpy(), "log_probability": odds.gather(1, action)[:, 0].numpy(),
                "value": value, "episode": playing, "clock": clock,
            }
        )  # fmt: skip
        np.add.at(rewards, (playing, clock), 100 * _act(episodes, playing, action, nodes))
    told = [episodes.told(k) for k in range(len(seeds))]
    num = sum(len(row["action"]) for row in rows)
    kept = np.sort(rng.permutation(num)[: order.keep])
    decisions = {name: np.concatenate([row[name] for row in rows])[kept] for name in rows[0]}
    means = {name: float(np.mean([one[name] for one in told])) for name in told[0]}
    return Played(rewards, values, decisions, *_expected(episodes), means)


def _begun(directory: Path | None, order: Order, tensors: nets.Tensors, seeds: Longs) -> Episodes:
    """The episodes of an order, one for each seed; which GPU a share takes is decided by V as it is now."""
    drawn_from = drawn(directory, order)
    episodes = Episodes(drawn_from, order.form, len(seeds), nets.potential_of(nets.arrays_of(tensors)))
    for k, seed in enumerate(seeds.tolist()):
        episodes.begin(k, np.random.default_rng(seed))
    return episodes


def drawn(directory: Path | None, order: Order) -> Scenario:
    """The scenario of an order."""
    rng = np.random.default_rng(order.scenario)
    offer = named(directory)(order.name)(int(rng.integers(1 << 62)))
    return scenario_of(offer.nodes, offer.pods, order.form.num_nodes, rng)


def _look(episodes: Episodes, playing: Longs, order: Order, tensors: nets.Tensors) -> tuple[Seen, Choice, torch.Tensor]:
    """What the decisions of some episodes are made by, between which nodes, and (B, L) the nodes' rows."""
    pods, frequency, context = _expected(episodes)
    offered = np.column_stack([episodes.pods(), episodes.clock / episodes.num_pods])[playing]
    if not order.lifetimes:
        offered[:, LIFETIMES] = 0.0
    seen = Seen(
        torch.from_numpy(episodes.nodes[playing]),
        torch.from_numpy(pods[None]),
        torch.from_numpy(np.log(frequency[None])),
        torch.from_numpy(context[None]),
        torch.zeros(len(playing), dtype=torch.int64),
        torch.from_numpy(episodes.clusters()[playing]),
        torch.from_numpy(offered),
    )
    after, fits = torch.from_numpy(episodes.after[playing]), torch.from_numpy(episodes.fits[playing])
    may_skip = torch.from_numpy(episodes.may_skip()[playing] & order.skip)
    with torch.no_grad():
        point = nets.points(seen, nets.contexts(seen, tensors), tensors)
        nodes, there = nets.levels(nets.gains(seen.nodes, after, point, tensors), fits, tensors)
    rows = torch.arange(len(playing))[:, None]
    return seen, Choice(seen.nodes[rows, nodes], after[rows, nodes], there, may_skip), nodes


def _expected(episodes: Episodes) -> tuple[Floats, Floats, Floats]:
    """(K, len(POD_FEATURES)) and (K,) of the pods that are expected, and (len(CONTEXT),) what kind they are."""
    outlook = episodes.scenario.outlook
    return attention.pod_features(outlook.mix, outlook.cpu_need_milli), outlook.mix.frequency, outlook.context


def _act(episodes: Episodes, playing: Longs, action: torch.Tensor, nodes: torch.Tensor) -> Floats:
    """Carry out (B, 1) actions, L to skip. Returns (B,) rewards."""
    num_nodes, num_levels = episodes.scenario.num_nodes, nodes.shape[1]
    chosen = nodes.gather(1, action.clamp(max=num_levels - 1))
    actions = np.full(len(episodes.over), num_nodes)
    actions[playing] = torch.where(action == num_levels, num_nodes, chosen)[:, 0].numpy()
    rewards: Floats = episodes.step(actions)[playing]
    return rewards


def here(directory: Path | None) -> Play:
    """In this process, one after the other."""
    return lambda orders, arrays: [_play(directory, order, arrays) for order in orders]


@contextmanager
def beside(directory: Path | None, jobs: int) -> Iterator[Play]:
    """In so many processes."""
    if jobs == 1:
        yield here(directory)
        return
    fresh = multiprocessing.get_context("spawn")  # whoever forks beside a thread may hang
    with ProcessPoolExecutor(jobs, fresh) as pool:
        yield lambda orders, arrays: list(pool.map(_play, [directory] * len(orders), orders, [arrays] * len(orders)))


def on_ray(directory: Path | None, address: str) -> Play:
    """By the workers of a Ray cluster, which have the traces at the same place: its address, or `local` for one here.

    Raises ModuleNotFoundError where Ray is not installed (`kerf[ray]`), ConnectionError when there is no cluster.
    """
    import ray  # noqa: PLC0415 - an extra of its own

    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)
    remote: Any = ray.remote(_play)

    def played(orders: Sequence[Order], arrays: dict[str, Floats]) -> list[Played]:
        sent = ray.put(arrays)
        found: list[Played] = ray.get([remote.remote(directory, order, sent) for order in orders])
        return found

    return played
