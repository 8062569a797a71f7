"""What the weeks of a history would have been under other policies: the same pods at the same times, first come first
served with skipping."""

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
from model.pasts.pasts import Past, past
from model.pasts.trust import REPLAYED, error_of
from model.pasts.usages import Price, month_cost, timeline, usage
from model.pasts.verdicts import verdict
from model.simulations.baselines import baseline
from model.simulations.departures import simulate_churn
from model.simulations.online import Follower, Seen, Watch
from model.simulations.side_by_side import side_by_side

_LEARNED: Final = "kerf"
_HAPPENED: Final = "actual"
"""What is known to have happened, among the policies."""


@dataclass(frozen=True)
class Asked:
    """What is to be found out."""

    policies: Sequence[str]
    fewer: bool = False
    """Whether the fewest nodes are looked for: `fewer_nodes.NUM_REPLAYS` more replays of each policy."""
    price: Price | None = None
    jobs: int = 1
    """Processes; the figures are the same."""

    @property
    def replayed(self) -> list[str]:
        """The policies, and what others are measured by."""
        return list(dict.fromkeys([*self.policies, REPLAYED]))

    @property
    def num_steps(self) -> int:
        """How often `replay` tells of something."""
        return len(self.replayed) * (2 if self.fewer else 1)


def replay(history: History, asked: Asked, model: Model, tell: Callable[[str], None]) -> dict[str, Any]:
    """Figures by policy, and what is known to have happened, as JSON data.

    `kerf` is what ships: it is told nothing, and expects what it has seen. Raises HistoryError, ValueError.
    """
    for name in asked.policies:
        if name != _LEARNED:
            baseline(name)  # a name that no policy has is told before anything is replayed
    known = past(history)
    if known.offered.tasks.submitted_s[-1] <= 0:
        raise HistoryError("all pods of the history came when it began: there is no time to tell of")
    actual = happened(history, known)
    with side_by_side(asked.jobs, tell) as run:
        accounts = run({name: partial(_account, known, name, model) for name in asked.replayed})
        error = error_of(known, actual, accounts[REPLAYED])
        limits = limits_of(known, accounts[REPLAYED])
        if actual and error["trusted"]:
            # Where a replay of the default waits less than what happened, that is its error, and no policy's merit.
            limits = limits.and_of(limits_of(known, actual))
        sought = {name: partial(_fewest, known, name, model, limits, done) for name, done in accounts.items()}
        fewer = _fewer(known, limits, run(sought), asked.price) if asked.fewer else None
    told = {name: _told(known, accounts[name], asked.price) for name in asked.replayed}
    first = next((name for name in asked.policies if name != REPLAYED), REPLAYED)
    shown = {name: accounts[name] for name in asked.policies} | ({_HAPPENED: actual} if actual else {})
    return {
        "history": _about(history.about, known),
        "price": {"amount": asked.price.amount, "currency": asked.price.currency} if asked.price else None,
        "policies": {name: told[name] for name in asked.policies},
        "actual": _told(known, actual, asked.price) if actual else None,
        "fewer": fewer,
        "error": error,
        "verdict": verdict(first, told[first], told[REPLAYED], error, fewer),
        "timeline": timeline(known, shown),
    }


def _account(known: Past, name: str, model: Model, *, count_blocked: bool = True) -> Account:
    """The replay under a policy. `count_blocked`: as in `Simulation`."""
    offered = known.offered
    policy = _follower(known, model) if name == _LEARNED else baseline(name)
    return account_of(known, simulate_churn(offered, policy, "fifo", 0, count_blocked=count_blocked))


def _fewest(known: Past, name: str, model: Model, limits: Limits, whole: Account) -> Fewest:
    return fewest(known, limits, whole, lambda smaller: _account(smaller, name, model, count_blocked=False))


def _fewer(known: Past, limits: Limits, found: Mapping[str, Fewest], price: Price | None) -> dict[str, Any]:
    gpus = gpus_of(known)
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


def _told(known: Past, done: Account, price: Price | None) -> dict[str, Any]:
    return {**figures(known, done), "month": usage(known, done, price)}


def _about(about: About, known: Past) -> dict[str, Any]:
    return {
        "source": about.source, "since_s": about.since_s, "days": round(known.until_s / 86400, 3),
        "days_told": round(float(known.offered.tasks.submitted_s[-1]) / 86400, 3),
        "nodes": len(known.nodes.names), "gpus": known.nodes.gpu_milli // WHOLE_MILLI,
        "pods": len(known.pods.names), "left_out": known.offered.left_out,
        "duration_guessed": known.duration_guessed, "missing": list(about.missing),
    }  # fmt: skip


def _follower(known: Past, model: Model) -> Follower:
    offered = known.offered
    load = model.manifest.foresight_load
    seen = Seen(offered.nodes, offered.tasks.asks, offered.model_names, Watch(), load)
    return Follower(model.potential, seen, Watch())
