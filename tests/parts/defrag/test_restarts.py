"""How long restarts take, by owner: from the starts of its pods that run."""

from typing import Any

import msgspec
import pytest

from extender.kube.objects import unix_time
from extender.parts.defrag.facts import Costs
from extender.parts.defrag.movable import Resident, _cost_of, residents, restart_times
from extender.plugins.holdings import whole_gpus
from tests.parts.defrag.clusters import STARTED, running

MINUTE = "2026-11-21T06:{:02d}:{:02d}Z"


def started(name: str, seconds: int | None, app: str = "web", **changes: Any) -> dict[str, Any]:
    """A pod of a ReplicaSet that was ready so long after it had its node; None: it is not."""
    made = running(name, "n-0", **changes)
    for reference in made["metadata"].get("ownerReferences", []):
        reference["name"] = app
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": STARTED}
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": STARTED}
    if seconds is not None:
        ready |= {"status": "True", "lastTransitionTime": MINUTE.format(*divmod(seconds, 60))}
    made["status"]["conditions"] = [ready, placed]
    return made


def read(*manifests: dict[str, Any]) -> list[Resident]:
    return list(residents(msgspec.json.encode({"items": manifests})))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param([90], 90, id="one pod"),
        pytest.param([30, 90, 600], 90, id="the median"),
        pytest.param([30, 90], 60, id="between two"),
        pytest.param([90, None], 90, id="one is not ready yet"),
        pytest.param([0], 15, id="no less than a quarter of what others take"),
        pytest.param([960], 960, id="no more than 16 times that"),
        pytest.param([961], None, id="it was unready since, or tells a tale"),
        pytest.param([90, 961], 90, id="of that nothing is learned"),
        pytest.param([None], None, id="nobody is ready"),
    ],
)
def test_the_median_start_of_an_owners_pods_within_bounds(seconds: list[int | None], expected: float | None) -> None:
    found = read(*(started(f"p{number}", each) for number, each in enumerate(seconds)))
    assert restart_times(found, 60.0) == ({} if expected is None else {"default/ReplicaSet/web": expected})


def test_nobody_tells_anything_of_others() -> None:
    """Owners are alike by namespace, kind and name; of who has none nothing is asked."""
    elsewhere = started("a", 400)
    elsewhere["metadata"]["namespace"] = "elsewhere"
    found = read(elsewhere, started("b", 100), started("c", 200, "db"), started("d", 300, owner=""))
    assert restart_times(found, 60.0) == {
        "elsewhere/ReplicaSet/web": 400,
        "default/ReplicaSet/web": 100,
        "default/ReplicaSet/db": 200,
    }


def test_where_restarts_cost_nothing_they_do_not_by_what_a_pod_tells_either() -> None:
    assert restart_times(read(started("a", 100), started("b", 0, "db")), 0.0) == {"default/ReplicaSet/db": 0.0}


@pytest.mark.parametrize("time", [None, "", "soon", "9" * 400, "0001-01-01T00:00:00+23:59", "2026-11-21T05:00:00Z"])
@pytest.mark.parametrize("kind", ["PodScheduled", "Ready"])
def test_times_that_can_not_be_are_none_or_in_bounds(kind: str, time: str | None) -> None:
    made = started("a", 90)
    for condition in made["status"]["conditions"]:
        if condition["type"] == kind:
            condition["lastTransitionTime"] = time
    assert restart_times(read(made), 60.0) in ({}, {"default/ReplicaSet/web": 15.0})


def test_a_move_costs_what_its_owners_pods_took_to_start() -> None:
    found = read(started("a", 90), started("b", None, "db"))
    costs = Costs(60.0, restart_times(found, 60.0))
    now = unix_time(STARTED) + 1000
    assert [_cost_of(pod, whole_gpus(1), costs, now) for pod, *_ in found] == [1090, 1060]
