"""What a run judges by itself, of Kerf's process and its metrics: planted faults of each kind are found."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
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
        self, *, reservations: float = 0.0, unready_after: float = float("inf"), ends: bool = False, deaf: bool = False
    ) -> None:
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
