"""Replays of a history under other policies: the same pods at the same times, first come, first served, with
skipping."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from extender.core.clusters import WHOLE_MILLI
from extender.history.records import About, History, HistoryError
from extender.ranking.files import Model
from model.pasts.accounts import Account, account_of, figures
from model.pasts.fewer_nodes import Fewest, Limits, fewest, gpus_of, limits_of
from model.pasts.happened import happened
from model.pasts.pasts import HistoryWorkload, past
from model.pasts.trust import REPLAYED, error_of
from model.pasts.usages import Price, month_cost, timeline, usage
from model.pasts.verdicts import verdict
from model.simulations.baselines import baseline
from model.simulations.departures import simulate_churn
from model.simulations.online import Follower, Seen, Watch
from model.simulations.side_by_side import side_by_side

_LEARNED: Final = "kerf"
_HAPPENED: Final = "actual"
"""Key of what happened, among the policies."""


@dataclass(frozen=True)
class Asked:
    """Parameters of a replay."""

    policies: Sequence[str]
    fewer: bool = False
    """Whether to search for the fewest nodes: `fewer_nodes.NUM_REPLAYS` more replays of each policy."""
    price: Price | None = None
    jobs: int = 1
    """Number of processes; results do not depend on it."""

    @property
    def replayed(self) -> list[str]:
        """The policies, and REPLAYED for comparison."""
        return list(dict.fromkeys([*self.policies, REPLAYED]))

    @property
    def num_steps(self) -> int:
        """Number of steps that `replay` reports."""
        return len(self.replayed) * (2 if self.fewer else 1)


def replay(history: History, config: Asked, model: Model, on_step: Callable[[str], None]) -> dict[str, Any]:
    """Return the results by policy, and the actual ones where known, as JSON data.

    `kerf` is `model` without prior knowledge of the workload. Raises HistoryError, ValueError.
    """
    for name in config.policies:
        if name != _LEARNED:
            baseline(name)  # fail early on unknown names
    workload = past(history)
    if workload.offered.tasks.submitted_s[-1] <= 0:
        raise HistoryError("all pods of the history were submitted at its start: there is no period to replay")
    actual = happened(history, workload)
    with side_by_side(config.jobs, on_step) as run:
        accounts = run({name: partial(_account, workload, name, model) for name in config.replayed})
        error = error_of(workload, actual, accounts[REPLAYED])
        limits = limits_of(workload, accounts[REPLAYED])
        if actual and error["trusted"]:
            # A default replay with shorter waits than the actual ones has an error that must not count as a gain.
            limits = limits.and_of(limits_of(workload, actual))
        searches = {name: partial(_fewest, workload, name, model, limits, done) for name, done in accounts.items()}
        fewer = _fewer(workload, limits, run(searches), config.price) if config.fewer else None
    rows = {name: _results(workload, accounts[name], config.price) for name in config.replayed}
    first = next((name for name in config.policies if name != REPLAYED), REPLAYED)
    plotted = {name: accounts[name] for name in config.policies} | ({_HAPPENED: actual} if actual else {})
    return {
        "history": _about(history.about, workload),
        "price": {"amount": config.price.amount, "currency": config.price.currency} if config.price else None,
        "policies": {name: rows[name] for name in config.policies},
        "actual": _results(workload, actual, config.price) if actual else None,
        "fewer": fewer,
        "error": error,
        "verdict": verdict(first, rows[first], rows[REPLAYED], error, fewer),
        "timeline": timeline(workload, plotted),
    }


def _account(workload: HistoryWorkload, name: str, model: Model, *, count_blocked: bool = True) -> Account:
    """Return the outcomes of a replay. `count_blocked`: as in `Simulation`."""
    offered = workload.offered
    policy = _follower(workload, model) if name == _LEARNED else baseline(name)
    return account_of(workload, simulate_churn(offered, policy, "fifo", 0, count_blocked=count_blocked))


def _fewest(workload: HistoryWorkload, name: str, model: Model, limits: Limits, whole: Account) -> Fewest:
    return fewest(workload, limits, whole, lambda smaller: _account(smaller, name, model, count_blocked=False))


def _fewer(
    workload: HistoryWorkload, limits: Limits, found: Mapping[str, Fewest], price: Price | None
) -> dict[str, Any]:
    gpus = gpus_of(workload)
    rows = {
        name: {
            "gpus": row.gpus, "too_few_gpus": row.too_few_gpus, "served": row.served,
            "percent": round(100 * (1 - row.gpus / gpus), 2), "waited": _limits(row.waited),
            **({"month_cost": month_cost(gpus - row.gpus, price)} if price else {}),
        }
        for name, row in found.items()
    }  # fmt: skip
    return {"gpus": gpus, "limits": _limits(limits), "policies": rows}


def _limits(limits: Limits) -> dict[str, Any]:
    return {"gpu_delay_s": round(limits.gpu_delay_s, 3), "waiting": dict(limits.delay_s)}


def _results(workload: HistoryWorkload, done: Account, price: Price | None) -> dict[str, Any]:
    return {**figures(workload, done), "month": usage(workload, done, price)}


def _about(about: About, workload: HistoryWorkload) -> dict[str, Any]:
    return {
        "source": about.source, "since_s": about.since_s, "days": round(workload.until_s / 86400, 3),
        "days_told": round(float(workload.offered.tasks.submitted_s[-1]) / 86400, 3),
        "nodes": len(workload.nodes.names), "gpus": workload.nodes.gpu_milli // WHOLE_MILLI,
        "pods": len(workload.pods.names), "left_out": workload.offered.left_out,
        "duration_guessed": workload.duration_guessed, "missing": list(about.missing),
    }  # fmt: skip


def _follower(workload: HistoryWorkload, model: Model) -> Follower:
    offered = workload.offered
    load = model.manifest.foresight_load
    seen = Seen(offered.nodes, offered.tasks.asks, offered.model_names, Watch(), load)
    return Follower(model.potential, seen, Watch())
