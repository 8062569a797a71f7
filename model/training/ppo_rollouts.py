"""Rollouts in local processes or on a Ray cluster, with identical results."""

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
from model.workloads.sources import source_lookup

OF_DECISION: Final = ("nodes", "cluster", "offered")
"""Fields of Seen with one row per decision."""

Arrays = dict[str, npt.NDArray[Any]]


class Order(NamedTuple):
    """Specification of rollouts in one scenario; equal orders give equal rollouts."""

    name: str
    """Trace, or `mix:KIND`."""
    form: EpisodeConfig
    scenario: tuple[int, ...]
    """Seed of the cluster, and of the mix."""
    seed: tuple[int, ...]
    """Seed of arrivals and actions."""
    lists: int
    """Number of lists of arrivals."""
    times: int
    """Rollouts of each list."""
    temperature: float
    """Temperature of the choice among nodes, in quanta."""
    skip: bool
    lifetimes: bool
    keep: int
    """Largest number of decisions to keep."""


class Played(NamedTuple):
    """Result of an order: E episodes, P arrivals, S kept decisions."""

    rewards: Floats
    """(E, P + 1) reward between consecutive arrivals, in percentage points of the capacity."""
    values: Floats
    """(E, P + 1) the critic's value at each arrival, nan without a decision."""
    decisions: Arrays
    """(S, ...) arrays by name: fields of Seen and Choice, `action`, `log_probability`, `value`, `episode`, `clock`."""
    pods: Floats
    """(K, len(POD_FEATURES)) features of the expected pods."""
    frequency: Floats
    """(K,) their frequency."""
    context: Floats
    """(len(CONTEXT),) their kind."""
    told: dict[str, float]
    """Means of `Episodes.told` over the episodes."""


Play = Callable[[Sequence[Order], dict[str, Floats]], list[Played]]
"""Runs orders with the nets' arrays; returns the result of each."""


def _play(directory: Path | None, order: Order, arrays: dict[str, Floats]) -> Played:
    """Run one order, sampling among the best nodes and the skip."""
    torch.set_num_threads(1)
    tensors = nets.tensors_of(arrays, tuple(arrays))
    rng = np.random.default_rng(order.seed)
    seeds = np.repeat(rng.integers(1 << 62, size=order.lists), order.times)
    episodes = _begin(directory, order, tensors, seeds)
    generator = torch.Generator().manual_seed(int(rng.integers(1 << 62)))
    rewards = np.zeros((len(seeds), episodes.num_pods + 1))
    values = np.full(rewards.shape, np.nan)
    rows: list[Arrays] = []
    while not episodes.over.all():
        playing = np.flatnonzero(~episodes.over)
        seen, choice, nodes = _observe(episodes, playing, order, tensors)
        with torch.no_grad():
            context = nets.contexts(seen, tensors)
            logit = nets.logits(choice, seen, context, tensors, order.temperature)
            value = nets.values(seen, context, tensors).numpy()
        odds = torch.log_softmax(logit, dim=1)
        action = torch.multinomial(odds.exp(), 1, generator=generator)
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
    infos = [episodes.told(k) for k in range(len(seeds))]
    num = sum(len(row["action"]) for row in rows)
    kept = np.sort(rng.permutation(num)[: order.keep])
    decisions = {name: np.concatenate([row[name] for row in rows])[kept] for name in rows[0]}
    means = {name: float(np.mean([one[name] for one in infos])) for name in infos[0]}
    return Played(rewards, values, decisions, *_expected(episodes), means)


def _begin(directory: Path | None, order: Order, tensors: nets.Tensors, seeds: Longs) -> Episodes:
    """Begin the episodes of an order, one for each seed; the current V chooses the GPU for a share."""
    drawn_from = drawn(directory, order)
    episodes = Episodes(drawn_from, order.form, len(seeds), nets.potential_of(nets.arrays_of(tensors)))
    for k, seed in enumerate(seeds.tolist()):
        episodes.begin(k, np.random.default_rng(seed))
    return episodes


def drawn(directory: Path | None, order: Order) -> Scenario:
    """Return the scenario of an order."""
    rng = np.random.default_rng(order.scenario)
    offer = source_lookup(directory)(order.name)(int(rng.integers(1 << 62)))
    return scenario_of(offer.nodes, offer.pods, order.form.num_nodes, rng)


def _observe(
    episodes: Episodes, playing: Longs, order: Order, tensors: nets.Tensors
) -> tuple[Seen, Choice, torch.Tensor]:
    """Return observations and choices of the playing episodes, and the (B, L) rows of the nodes."""
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
    """Return (K, len(POD_FEATURES)) features and (K,) frequency of expected pods, and their (len(CONTEXT),) kind."""
    outlook = episodes.scenario.outlook
    return attention.pod_features(outlook.mix, outlook.cpu_need_milli), outlook.mix.frequency, outlook.context


def _act(episodes: Episodes, playing: Longs, action: torch.Tensor, nodes: torch.Tensor) -> Floats:
    """Apply (B, 1) actions, L to skip. Returns (B,) rewards."""
    num_nodes, num_levels = episodes.scenario.num_nodes, nodes.shape[1]
    chosen = nodes.gather(1, action.clamp(max=num_levels - 1))
    actions = np.full(len(episodes.over), num_nodes)
    actions[playing] = torch.where(action == num_levels, num_nodes, chosen)[:, 0].numpy()
    rewards: Floats = episodes.step(actions)[playing]
    return rewards


def here(directory: Path | None) -> Play:
    """Run rollouts in this process."""
    return lambda orders, arrays: [_play(directory, order, arrays) for order in orders]


@contextmanager
def beside(directory: Path | None, jobs: int) -> Iterator[Play]:
    """Run rollouts in `jobs` processes."""
    if jobs == 1:
        yield here(directory)
        return
    context = multiprocessing.get_context("spawn")  # forking a process with threads may hang
    with ProcessPoolExecutor(jobs, context) as pool:
        yield lambda orders, arrays: list(pool.map(_play, [directory] * len(orders), orders, [arrays] * len(orders)))


def on_ray(directory: Path | None, address: str) -> Play:
    """Run rollouts on a Ray cluster at an address (`local` starts one); workers need the traces at the same path.

    Raises ModuleNotFoundError if Ray is not installed (`kerf[ray]`), ConnectionError if there is no cluster.
    """
    import ray  # noqa: PLC0415 - optional extra

    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)
    remote: Any = ray.remote(_play)

    def played(orders: Sequence[Order], arrays: dict[str, Floats]) -> list[Played]:
        sent = ray.put(arrays)
        found: list[Played] = ray.get([remote.remote(directory, order, sent) for order in orders])
        return found

    return played
