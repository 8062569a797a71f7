"""Months of a cluster that learns: its drift, and which model serves."""

import numpy as np
import pytest

from extender.core.valuenet.features import FEATURES
from extender.core.valuenet.potentials import linear
from extender.ranking import rollout as rollouts
from extender.ranking.files import Manifest, Model
from extender.ranking.rollout import Rollout, Stage
from model.training import months
from model.training.months import _FGD, _LEARNING, _RELEASED, Plan, _cluster, _summary
from model.workloads.traces import NodeList, PodList

NUM = 400
PLAN = Plan(num_months=4, jump=3)


def model(name: str, **weights: float) -> Model:
    potential = linear(np.array([weights.get(feature, 0.0) for feature in FEATURES]), 0.001)
    return Model(potential, Manifest(sha256=name, foresight_load=1.0, training={}, evaluation=()))


RELEASE = model("released", node_idle=-1.0, gpu_square=-1.0)
PACKS, SPREADS = model("packs", node_idle=1.0, gpus_idle=0.01), model("spreads", node_idle=-1.0, gpu_square=-1.0)
NODES = NodeList(
    tuple(f"n-{number}" for number in range(8)), np.full(8, 64_000), np.full(8, 262_144), np.full(8, 4), ("T4",) * 8
)


def ones_and_fours(seed: int) -> PodList:
    gpus = np.where(np.random.default_rng(seed).random(NUM) < 0.75, 1, 4)
    return PodList(
        tuple(f"pod-{number}" for number in range(NUM)), np.full(NUM, 1000), np.full(NUM, 1024), gpus,
        np.full(NUM, 1000), ("",) * NUM, np.arange(NUM, dtype=float), np.full(NUM, 3600.0),
    )  # fmt: skip


def kinds(pods: PodList) -> set[tuple[int, ...]]:
    columns = (pods.cpu_milli, pods.memory_mib, pods.num_gpus, pods.gpu_milli)
    return set(zip(*(column.tolist() for column in columns), strict=True))


def test_a_mix_drifts_and_then_jumps() -> None:
    nodes, lists = _cluster(2, PLAN)
    assert len(lists) == 4
    asked = [int(pods.asked_milli.sum()) / nodes.gpu_milli for pods in lists]
    assert all(4.0 <= part < 4.2 for part in asked)
    first = kinds(lists[0])
    new = [len(kinds(pods) - first) / len(kinds(pods)) for pods in lists]
    assert 0 < new[1] < new[3] and not kinds(lists[3]) & kinds(lists[0])
    again = _cluster(2, PLAN)[1]
    assert [pods.names for pods in again] == [pods.names for pods in lists]
    assert (again[3].cpu_milli == lists[3].cpu_milli).all()
    assert lists[1].submitted_s is not None and (np.diff(lists[1].submitted_s) >= 0).all()


def decided(course: Rollout, models: dict[str, Model], month: int) -> Rollout:
    return months._decided(course, models, NODES, ones_and_fours(month), month)  # noqa: SLF001


@pytest.mark.slow
def test_a_better_model_serves_after_a_month_and_a_worse_one_goes() -> None:
    models = {"": RELEASE, "packs": PACKS, "spreads": SPREADS}
    course = decided(rollouts.offered(Rollout(), "packs", 0), models, 1)
    assert (course.serving, course.stage) == ("packs", Stage.NONE)
    course = decided(rollouts.offered(course, "spreads", 1), models, 2)
    assert (course.serving, course.candidate, course.taken_back) == ("packs", "", 1)
    models[""] = PACKS  # what is released is better now than what serves
    course = decided(Rollout(serving="spreads"), models, 3)
    assert course.serving == "" and "no longer serves" in course.said


def test_no_verdict_within_a_month_is_none() -> None:
    course = decided(rollouts.offered(Rollout(), "same", 0), {"": PACKS, "same": PACKS}, 1)
    assert course.candidate == "" and course.serving == "" and "without a verdict" in course.said


def test_gains_are_paired_by_cluster_over_the_months_in_which_there_can_be_any() -> None:
    def month(number: int, learning: float, released: float, serving: str = "x") -> dict[str, object]:
        ranks = {
            name: {"allocated_gpus": gpus, "mean_delay_s": 10.0, "large_delay_s": 20.0}
            for name, gpus in ((_LEARNING, learning), (_RELEASED, released), (_FGD, 50.0))
        }
        return {"month": number, "gpus": 200.0, "serving": serving, "said": "model a serves: x", "ranks": ranks}

    begin = [month(0, 1.0, 99.0, ""), month(1, 1.0, 99.0, "")]
    one = [*begin, month(2, 102.0, 100.0), month(3, 104.0, 100.0)]
    found = _summary([one, [*begin, month(2, 100.0, 100.0), month(3, 100.0, 100.0)]])
    assert found["over"]["released"]["allocated_gpus"]["mean"] == pytest.approx((1.5 + 0.0) / 2)
    assert found["over"]["fgd"]["allocated_gpus"]["mean"] == pytest.approx((26.5 + 25.0) / 2)
    assert (found["months_served"], found["months"], found["came_to_serve"]) == (4, 8, 8)


@pytest.mark.slow
def test_a_few_months_of_one_cluster() -> None:
    told = months.run([1], Plan(num_months=3, jump=2, episodes=16, flood=50), 1, lambda said: None)
    (rows,) = told["clusters"].values()
    assert [row["month"] for row in rows] == [0, 1, 2]
    assert all(0 < rank["allocated_gpus"] <= row["gpus"] for row in rows for rank in row["ranks"].values())
    assert rows[0]["ranks"][_LEARNING] == rows[0]["ranks"][_RELEASED]  # nothing is fitted yet
