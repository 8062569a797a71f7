"""The judge of moves: each promise is found broken where it was, and nothing where it was not."""

import json
from typing import Any

import pytest

from tests.controlplane.objects import gpu_node
from tests.tools.chaos.checker import Violation
from tests.tools.chaos.holdings import Manifest
from tests.tools.chaos.journals import Journal
from tests.tools.chaos.modes import REPLACE_S
from tests.tools.chaos.moves import checker
from tests.tools.chaos.moves.manifests import OWNER, budget
from tests.tools.chaos.moves.plans import Owner
from tests.tools.chaos.stories import Story

EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
KERF = "system:serviceaccount:kube-system:kerf"


class Moving(Story):
    """Two nodes and who is moved between them, a moment apart."""

    def __init__(self) -> None:
        super().__init__(Journal(clock=lambda: self.now))
        self.now = 0.0
        for name in "ab":
            self.tell("nodes", name, status=gpu_node(name, gpus=4)["status"])

    def tell(self, kind: str, name: str, *, later_s: float = 0.1, **parts: Any) -> None:
        self.now += later_s
        super().tell(kind, name, **parts)

    def pod(
        self,
        name: str,
        node: str = "",
        *,
        owner: str = "",
        gpus: int = 2,
        ready: bool = True,
        ending: str = "",
        later_s: float = 0.1,
        **annotations: str,
    ) -> None:
        """A pod; `ending`: "evicted", or by other means."""
        conditions: list[Manifest] = [{"type": "Ready", "status": str(ready and bool(node))}]
        metadata: dict[str, Any] = {
            "labels": {OWNER: owner},
            "annotations": {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()},
            "ownerReferences": [{"uid": f"uid of {owner}", "controller": True}] if owner else [],
        }
        if ending:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            conditions += [EVICTED] if ending == "evicted" else []
        container = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        spec = {"containers": [container], **({"nodeName": node} if node else {})}
        self.tell("pods", name, metadata=metadata, spec=spec, status={"conditions": conditions}, later_s=later_s)

    def record(self, stage: str = "evicting", phase: str = "moving", later_s: float = 0.1) -> None:
        """A plan by which v goes from a to b, and big to a."""
        told = {
            **{"id": "p1", "phase": phase, "progress": [{"uid": "v", "stage": stage}]},
            "plan": {
                "moves": [{"pod": "default/v", "uid": "v", "from": "a", "to": "b"}],
                "target": [{"pod": "default/big", "uid": "big", "node": "a"}],
            },
        }
        self.tell("maps", "kerf-defrag", data={"plan.json": json.dumps(told)}, later_s=later_s)

    def budget(self, keeps: int, *disrupted: str, later_s: float = 5.0) -> None:
        """Of v's controller."""
        made = budget("rs", keeps)
        self.tell(
            "budgets", "rs", spec=made["spec"], status={"disruptedPods": dict.fromkeys(disrupted)}, later_s=later_s
        )

    def evict(self, **options: Any) -> None:
        """v goes, as is written down."""
        self.record()
        self.pod("v", "a", owner="rs", ending="evicted", **options)

    def comes_again(self, node: str = "b") -> None:
        self.gone("pods", "v")
        self.pod("v2", owner="rs")
        self.pod("v2", node, owner="rs", planned_by="defrag p1")

    @property
    def promises(self) -> list[str]:
        return [found.promise for found in checker.replay(self.journal)]


@pytest.fixture
def story() -> Moving:
    """v runs on a, w beside it, and big waits for all of a."""
    made = Moving()
    made.pod("v", "a", owner="rs")
    made.pod("w", "b", owner="other")
    made.pod("big", gpus=4)
    return made


def test_a_plan_that_is_carried_out_breaks_nothing(story: Moving) -> None:
    story.record("planned")
    story.evict()
    story.comes_again()
    story.record("done", "placing")
    story.pod("big", "a", gpus=4)
    story.record("done", "done")
    assert story.promises == []
    assert checker.num_moved(story.journal) == 1


@pytest.mark.parametrize("stage", ["planned", "left", "done"])
def test_an_eviction_that_no_step_says_is_found(story: Moving, stage: str) -> None:
    story.record(stage)
    story.pod("v", "a", owner="rs", ending="evicted")
    assert story.promises == ["nobody is evicted but by a step that is written down"]


def test_an_eviction_after_the_plan_has_ended_is_found(story: Moving) -> None:
    story.record("evicting", "stopped")
    story.pod("v", "a", owner="rs", ending="evicted")
    assert story.promises == ["nobody is evicted but by a step that is written down"]


def test_a_replacement_that_is_evicted_for_the_same_plan_is_found(story: Moving) -> None:
    story.evict()
    story.comes_again()
    story.pod("v2", "b", owner="rs", ending="evicted")
    assert story.promises == ["nobody is evicted but by a step that is written down"]


def test_pods_that_others_delete_and_what_is_left_of_a_gang_are_no_moves(story: Moving) -> None:
    story.pod("w", "b", owner="other", ending="by its user")
    story.pod("m", "a", gang="g")
    story.pod("m", "a", gang="g", ending="evicted")
    assert story.promises == []


def test_an_eviction_past_its_budget_is_found(story: Moving) -> None:
    story.budget(0)
    story.evict(later_s=5.0)
    assert story.promises == ["every eviction is counted by its budget"]


@pytest.mark.parametrize(("keeps", "promises"), [(1, []), (2, ["no eviction leaves fewer than a budget keeps"])])
def test_an_eviction_that_leaves_fewer_than_a_budget_keeps_is_found(
    story: Moving, keeps: int, promises: list[str]
) -> None:
    story.pod("x", "b", owner="rs", gpus=1)
    story.budget(keeps)
    story.budget(keeps, "v")
    story.evict()
    assert story.promises == promises


def test_what_others_have_done_to_the_pods_of_a_budget_is_not_blamed_on_the_eviction(story: Moving) -> None:
    story.pod("x", "b", owner="rs", gpus=1)
    story.budget(1)
    story.budget(1, "v")
    story.pod("x", "b", owner="rs", gpus=1, ending="by its user")
    story.evict()
    assert story.promises == []


@pytest.mark.parametrize(
    ("gpus", "promises"),
    [(0, []), (1, ["the place of an evicted pod is kept"]), (2, ["the place of an evicted pod is kept"])],
)
def test_a_place_that_is_given_to_another_pod_is_found(story: Moving, gpus: int, promises: list[str]) -> None:
    story.evict()
    story.pod("thief", "b", gpus=gpus)
    assert story.promises == promises


def test_a_place_may_be_given_away_once_its_pod_has_one_or_the_time_is_over(story: Moving) -> None:
    story.evict()
    story.comes_again("a")
    story.pod("other", "b")
    assert story.promises == []


def test_a_place_may_be_given_away_once_kerf_may_have_given_up(story: Moving) -> None:
    story.evict()
    story.pod("other", "b", later_s=REPLACE_S + 0.1)
    assert story.promises == []


def test_a_place_on_a_node_that_offers_less_than_before_is_not_kept(story: Moving) -> None:
    story.evict()
    smaller = gpu_node("b", gpus=4, allocatable={"nvidia.com/gpu": "3"})
    story.tell("nodes", "b", status=smaller["status"])
    story.pod("other", "b", gpus=1)
    assert story.promises == []


def test_a_pod_that_comes_to_a_node_that_has_shrunk_takes_nobodys_place(story: Moving) -> None:
    smaller = gpu_node("b", gpus=4, allocatable={"nvidia.com/gpu": "1"})
    story.tell("nodes", "b", status=smaller["status"])
    story.pod("late", "b", gpus=1)
    assert story.promises == []


def test_a_step_for_a_target_that_has_had_room_for_long_is_found(story: Moving) -> None:
    story.record("planned")
    story.pod("v", "a", owner="rs", gpus=0)
    story.record("planned")
    story.record("evicting", later_s=9.0)
    assert story.promises == ["no move without need"]


def test_a_step_for_a_target_that_has_had_room_for_a_moment_is_not(story: Moving) -> None:
    story.record("planned")
    story.pod("v", "a", owner="rs", gpus=0)
    story.record("evicting", later_s=2.0)
    assert story.promises == []


def test_pods_that_kerf_deletes_are_found() -> None:
    def line(user: str, verb: str, code: int = 200, **ref: str) -> str:
        ref = {"resource": "pods", "name": "v", **ref}
        told = {"verb": verb, "objectRef": ref, "user": {"username": user}, "responseStatus": {"code": code}}
        return json.dumps(told)

    lines = [
        *(line("system:admin", "delete"), line(KERF, "create", subresource="eviction")),
        *(line(KERF, "delete", 403), line(KERF, "delete")),
    ]
    assert checker.ended_otherwise(lines, KERF) == [
        Violation("Kerf ends pods by evictions alone", "v", "it was deleted")
    ]


@pytest.mark.parametrize(("phase", "ends"), [("moving", False), ("placing", False), ("done", True), ("stopped", True)])
def test_a_plan_that_does_not_end_is_found(story: Moving, phase: str, ends: bool) -> None:
    story.record("evicting", phase)
    *_, told = story.journal
    assert [found.promise for found in checker.left_under_way(told.manifest)] == ([] if ends else ["every plan ends"])
    assert checker.left_under_way(None) == checker.left_under_way({"data": {}}) == []


def test_controllers_without_their_pods_are_found(story: Moving) -> None:
    def owner(name: str, kind: Owner, wanted: int, **parts: Any) -> Manifest:
        field = "parallelism" if kind is Owner.JOB else "replicas"
        return {"metadata": {"name": name, **parts}, "spec": {field: wanted}, "status": {}}

    story.pod("x", owner="rs")
    story.pod("y", "a", owner="rs", ending="by its user")
    pods = [event.manifest for event in story.journal if event.kind == "pods"]
    owners = [
        owner("rs", Owner.REPLICA_SET, 2),
        owner("none", Owner.REPLICA_SET, 1),
        owner("zero", Owner.REPLICA_SET, 0),
    ]
    owned = owner("owned", Owner.REPLICA_SET, 3, ownerReferences=[{"uid": "deployment"}])
    assert checker.short_of_pods(Owner.REPLICA_SET, [*owners, owned], pods) == [
        Violation("every controller has its pods", "ReplicaSet none", "0 of 1 are there")
    ]
    failed = {**owner("job", Owner.JOB, 2), "status": {"failed": 1}}
    assert checker.short_of_pods(Owner.JOB, [owner("rs", Owner.JOB, 3), failed], pods) == [
        Violation("every controller has its pods", "Job rs", "2 of 3 are there")
    ]
