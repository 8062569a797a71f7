"""What a run judges by itself, of Kerf's process and its metrics: planted faults of each kind are found."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.tools.chaos.clusters import Cluster
from tests.tools.chaos.faults import Fault, Kind
from tests.tools.chaos.plans import NodePlan, Plan, PodPlan
from tests.tools.chaos.runs import Run
from tests.tools.chaos.steps import Steps
from tests.tools.chaos.witnesses import Seen

PLAN = Plan(seed=1, replicas=1, elects=False, nodes=(NodePlan("n", 1, "A100", 1),), pods=(), late_pods=(), faults=())


class Loop:
    """The harness's loop, of this thread."""

    @staticmethod
    def call(function: Callable[..., Any], *arguments: object) -> Any:
        return function(*arguments)


class Planted:
    """A cluster without pods, whose Kerf does what was planted."""

    def __init__(
        self,
        *,
        reservations: float = 0.0,
        unready_after: float = float("inf"),
        ends: bool = False,
        deaf: bool = False,
        kept: float = 0.0,
    ) -> None:
        self._kept = kept
        self._reservations = reservations
        self._unready_after = unready_after
        self._ends = ends
        self._deaf = deaf
        self._num_looks = 0
        self.loop = Loop()
        self.witness = SimpleNamespace(seen=Seen())
        nothing = lambda *_: None  # noqa: E731
        self.board = SimpleNamespace(begin=nothing, end=nothing, num_pending=0, num_waiting=0, counts=Counter())
        self.plane = SimpleNamespace(request=nothing, revive_ended=list)
        self.has_groups = False
        self.extender = True
        self.replicas: list[Any] = []

    def end_kerf(self) -> None:
        """Nothing runs yet."""

    def clean(self) -> None:
        """Nothing is there."""

    def start_kerf(self, *_: object, **__: object) -> None:
        """It is planted."""

    def items(self, kind: str) -> list[Any]:
        return []

    def audited(self, names: object) -> list[str]:
        return []

    def kerf_fault(self) -> str:
        self._num_looks += 1
        return "dead tasks" if self._num_looks > self._unready_after else ""

    def revive_kerf(self) -> list[Any]:
        ended, self._ends = self._ends, False
        return [SimpleNamespace(log=Path("kerf-0.log"), last_words=lambda: "Killed")] if ended else []

    def kerf_answers(self, path: str) -> list[str]:
        if path == "/nodes/last" and not self._deaf:
            return ['{"node":"last"}']
        if path == "/nodes":
            return [json.dumps({"totals": {"gpusReserved": self._kept}})]
        return [f"what {path} says"]

    def metric(self, name: str) -> float:
        return self._reservations if name == "kerf_reservations" else 0.0


@pytest.mark.parametrize(
    ("planted", "promises"),
    [
        (Planted(), []),
        (Planted(reservations=2.0), ["no reservation left after its TTL"]),
        (Planted(unready_after=1), ["Kerf is ready again"]),
        (Planted(ends=True), ["Kerf does not end by itself"]),
        (Planted(deaf=True), ["Kerf hears of nodes"]),
    ],
)
def test_what_is_wrong_with_kerf_itself_is_found(planted: Planted, promises: list[str], tmp_path: Path) -> None:
    planted.plane.directory = tmp_path
    clock = itertools.count(0.0, 0.7)
    outcome = Run(planted, PLAN, lambda: next(clock)).execute()  # type: ignore[arg-type]
    assert [violation.promise for violation in outcome.violations] == promises


@pytest.mark.nightly(of=("tests/tools/chaos/", "extender/scheduling/", "extender/queueing/"))
@pytest.mark.parametrize(("kept", "found"), [(0.0, []), (2.0, ["little is kept for pods that were refused"])])
def test_what_is_kept_for_pods_that_no_node_takes_is_found_in_runs_that_have_some(
    kept: float, found: list[str], tmp_path: Path
) -> None:
    refused = PodPlan("refused-00", 0.0, 0, 1, node="n", obstacle=Kind.VOLUME_UNBOUND)
    for plan, promises in ((PLAN, []), (replace(PLAN, pods=(refused,)), found)):
        planted = Planted(kept=kept)
        planted.plane.directory = tmp_path
        clock = partial(next, itertools.count(0.0, 0.7))
        outcome = Run(cast(Cluster, planted), plan, clock).execute()
        assert [
            violation.promise for violation in outcome.violations if violation.subject == "reservations"
        ] == promises


class NotingCluster(Planted):
    """One whose requests are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, str, Any]] = []
        self.plane = SimpleNamespace(request=self._note_all, revive_ended=list)

    def _note_all(self, method: str, path: str, body: object = None, _: str = "") -> None:
        self.requests.append((method, path, body))


def test_a_pod_that_runs_is_asked_to_be_smaller_and_becomes_it_later() -> None:
    cluster, fault = NotingCluster(), Fault(Kind.RESIZE_PENDING, 0.1, target="n", for_s=0.5)
    steps = Steps(cast(Cluster, cluster), PLAN, lambda: 0.0)
    steps.schedule.at(fault.at_s, steps.fault(fault))

    def cpus() -> list[tuple[str, str]]:
        found = []
        for _, path, body in cluster.requests:
            of = body["spec"]["containers"] if "spec" in body else body["status"]["containerStatuses"]
            found.append((path.removeprefix("/api/v1/namespaces/default/pods/"), of[0]["resources"]["requests"]["cpu"]))
        return found

    steps.schedule.take_due(0.2)
    assert cpus() == [("resized-n/status", "95500m"), ("resized-n/resize", "100m")]
    steps.schedule.take_due(0.7)
    assert cpus()[2:] == [("resized-n/status", "100m")]
    assert steps.counts == {Kind.RESIZE_PENDING: 1}


@pytest.mark.parametrize(
    ("kind", "path", "part"),
    [
        (Kind.LEFT_BY_GPUSHARE, "/api/v1/nodes/n/status", "aliyun.com/gpu-mem"),
        (Kind.LEFT_BY_HAMI, "/api/v1/nodes/n", "hami.io/node-handshake"),
        (Kind.LEFT_LOCK, "/api/v1/nodes/n", "hami.io/mutex.lock"),
    ],
)
def test_leftovers_are_written_on_a_node(kind: Kind, path: str, part: str) -> None:
    cluster = NotingCluster()
    assert Steps(cast(Cluster, cluster), PLAN, lambda: 0.0).fault(Fault(kind, 0.0, target="n"))()
    ((method, written, body),) = cluster.requests
    assert (method, written) == ("PATCH", path)
    assert part in json.dumps(body)


def test_an_obstacle_took_effect_where_its_first_pod_waits_and_somebody_says_why() -> None:
    cluster = NotingCluster()
    plan = replace(PLAN, faults=(Fault(Kind.UNKNOWN_RESOURCE, 0.0, target="a"),))
    waiting: dict[str, Any] = {"metadata": {"name": "a", "uid": "a"}, "spec": {"containers": []}, "status": {}}
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
    refused = waiting | {"status": {"conditions": [condition]}}
    placed = refused | {"spec": {"containers": [], "nodeName": "n"}}
    for found, number in ((None, 0), (waiting, 0), (placed, 0), (refused, 1)):
        cluster.witness.seen.pods = {"a": found} if found else {}
        steps = Steps(cast(Cluster, cluster), plan, lambda: 0.0)
        steps.count_obstacles()
        assert steps.counts[Kind.UNKNOWN_RESOURCE] == number


class MirrorCluster(Planted):
    """One whose requests are noted, and whose Kerf knows what there is from a time on."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []
        self.synced = False
        kubelet = SimpleNamespace(request=self._note, close=lambda: None)
        self.plane = SimpleNamespace(request=self._note, revive_ended=list, kubelet=lambda node: kubelet)

    def _note(self, method: str, path: str, body: object = None) -> None:
        self.requests.append(method)

    def kerf_is_synced(self) -> bool:
        return self.synced


def test_a_mirror_is_deleted_before_the_eyes_of_kerf_and_no_kerf_starts_while_it_is_missing() -> None:
    mirror = PodPlan("mirror-n1", 0.0, 0, 1, by_resource=True, node="n1", mirror=True)
    cluster, fault = MirrorCluster(), Fault(Kind.MIRROR_DELETED, 0.1, target=mirror.name, for_s=0.5)
    steps = Steps(cast(Cluster, cluster), replace(PLAN, pods=(mirror,)), lambda: 0.25)
    steps.schedule.at(fault.at_s, steps.fault(fault))
    steps.schedule.take_due(0.15)
    assert (cluster.requests, steps.missing_mirrors) == ([], set())
    cluster.synced = True
    steps.schedule.take_due(0.3)
    assert (cluster.requests, steps.missing_mirrors) == (["DELETE"], {mirror.name})
    steps.schedule.take_due(0.8)
    assert (cluster.requests, steps.missing_mirrors) == (["DELETE", "POST"], set())
