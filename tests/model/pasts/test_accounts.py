"""What is told of a replay: means over steps, waiting by size, starts that only a move would have allowed."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from extender.core.durations import Durations
from extender.ranking import files
from model.pasts.accounts import Account, account_of, figures, waiting
from model.pasts.pasts import past
from model.pasts.replays import _account
from model.simulations.baselines import BASELINES
from model.simulations.delays import turns_of
from model.simulations.departures import simulate_churn
from model.simulations.queues import Simulation
from tests.history.builders import history, nodes, pods

HOUR = 3600.0
Rows = Iterable[dict[str, Any]]


def replayed(policy: str, rows: Rows, *gpus: int, **about: Any) -> Account:
    return _account(past(history(pods(*rows), nodes(*gpus), **about)), policy, files.read(files.RELEASED))


def random_rows(seed: int, number: int = 150, sizes: tuple[int, ...] = (0, 1, 1, 2, 4, 8)) -> list[dict[str, Any]]:
    """Pods of shares, one GPU and several; 150 of all sizes keep 24 GPUs full."""
    rng = np.random.default_rng(seed)
    rows = []
    for at in np.sort(rng.random(number)) * 40 * HOUR:
        gpus = int(rng.choice(sizes))
        milli = 1000 if gpus != 1 else int(rng.choice([300, 500, 1000]))
        ended_s = at + rng.exponential(4) * HOUR + 60
        rows.append({"submitted_s": at, "gpus": gpus, "gpu_milli": milli if gpus else 0, "ended_s": ended_s})
    return rows


def test_waiting_by_size_against_a_loop() -> None:
    rng = np.random.default_rng(1)
    asked = rng.choice([0, 250, 999, 1000, 1999, 2000, 3000, 4000, 7000, 8000, 64_000], 300)
    delay_s = rng.random(300) * 1000
    told = waiting(asked, delay_s)
    names = {"share": (1, 999), "1": (1000, 1999), "2-3": (2000, 3999), "4-7": (4000, 7999), "8+": (8000, 10**9)}
    for name, (low, high) in names.items():
        waited = [d for d, milli in zip(delay_s.tolist(), asked.tolist(), strict=True) if low <= milli <= high]
        assert told[name]["jobs"] == len(waited)
        assert told[name]["mean_delay_s"] == pytest.approx(sum(waited) / len(waited), abs=1e-3)
        assert told[name]["p99_delay_s"] == pytest.approx(np.percentile(waited, 99), abs=1e-3)
    assert list(waiting(np.array([0, 1000]), np.array([5.0, 7.0]))) == ["1"]  # who asks for none is of no size


def test_who_starts_after_the_history_waited_to_its_end() -> None:
    """One GPU, taken for 10 h; the history ends after 5 h. The second pod came at 1 h and is not known to start."""
    rows: Rows = [{"ended_s": 10 * HOUR}, {"submitted_s": HOUR}]
    told = replayed("fgd", rows, 1, until_s=5 * HOUR)
    assert told.delay_s.tolist() == [0.0, 4 * HOUR] and told.never.tolist() == [False, True]


def test_a_start_that_only_a_move_would_have_allowed() -> None:
    """Two nodes of 8: two pods of 4 spread over them leave 8 free, but no node for a pod of 8; one node would do."""
    rows: Rows = [{"gpus": 4}, {"gpus": 4}, {"submitted_s": 60.0, "gpus": 8}, {"submitted_s": 61.0, "gpus": 8}]
    assert replayed("spread", rows, 8, 8).blocked_starts == 1  # there is room for one of the two
    assert replayed("bestfit", rows, 8, 8).blocked_starts == 0
    one_cpu: Rows = [row | {"cpu_milli": 60_000 if row["gpus"] == 4 else 64_000} for row in rows]
    assert replayed("spread", one_cpu, 8, 8).blocked_starts == 0  # 8 milli of CPU are left: no move helps
    gang: Rows = [*rows[:2], *({"submitted_s": 60.0, "gpus": 4, "gang": "g", "gpu_models": "A100"},) * 2]  # type: ignore[index]
    assert replayed("spread", [*gang, {"submitted_s": 62.0}], 8, 8).blocked_starts == 0  # left out: no such GPU


@dataclass
class _Watched(Simulation):
    """Finds blocked starts by loops, after each walk."""

    seen: set[int] = field(default_factory=set)

    def _walk(self, now: float, outcome: Any) -> None:
        super()._walk(now, outcome)
        asked = self.tasks.asked_milli
        waiting = sorted(
            (place, kind) for (kind, _), queue in self._queues.items() for place in queue if asked[place[2]] >= 2000
        )
        for kind in dict.fromkeys(kind for _, kind in waiting):
            for (_, _, job), other in waiting:
                promised = sum(int(asked[place[2]]) for place, _ in waiting if place[2] in self.seen)
                if other == kind and job not in self.seen and self._enough(kind, promised):
                    self.seen.add(job)

    def _enough(self, kind: Any, promised: int) -> bool:
        ((c, _),) = kind
        asks = self.tasks.asks
        large = self.nodes.num_gpus >= asks.num_gpus[c]
        free = int(self.nodes.gpu_free_milli[large].sum())
        return free - promised >= int(asks.num_gpus[c] * asks.gpu_milli[c])


def test_such_starts_against_loops() -> None:
    offered = past(history(pods(*random_rows(3)), nodes(8, 8, 4))).offered
    turns = turns_of("fifo", offered.tasks, offered.owners, Durations())
    for policy in ("spread", "fgd"):
        watched = _Watched(
            offered.tasks, offered.nodes.copy(), BASELINES[policy], turns, np.random.default_rng([0, 2]),
            model_names=offered.model_names,
        )  # fmt: skip
        watched.run()
        found = simulate_churn(offered, BASELINES[policy], "fifo", 0, count_blocked=True).outcome.blocked_jobs
        assert found == watched.seen and found


def test_figures_are_those_of_the_run() -> None:
    known = past(history(pods(*random_rows(6)), nodes(8, 8, 8), until_s=400 * HOUR))
    run = simulate_churn(known.offered, BASELINES["fgd"], "fifo", 0, count_blocked=True)
    told = figures(known, account_of(known, run))
    span_s = known.offered.tasks.submitted_s[-1]
    assert told["allocated_gpus"] == pytest.approx(run.outcome.allocated_gpu_s / span_s, abs=1e-3)
    assert told["fragments"] == pytest.approx(run.outcome.fragment_gpu_s / span_s, abs=1e-3)
    asked = known.offered.tasks.asked_milli
    assert told["gpu_delay_s"] == pytest.approx(run.delay_s[asked > 0].mean(), abs=1e-3)
    assert told["never_started"] == 0
