"""Pods that can't be released say why, and are tried ever later; a queue that can't plan says so on all that wait."""

import pytest

from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.kube.rights import Grants, Need, Rights
from extender.queueing.dispatch import no_right
from tests.kube.test_rights import forbidden
from tests.queueing.rigs import Rig

_LACKS = "user system:kube-scheduler lacks that right, which manifests/queue/rbac.yaml gives"


@pytest.mark.parametrize(
    ("error", "said", "most"),
    [
        (forbidden("patch", "pods"), f"Kerf may not patch pods: {_LACKS}", 12),
        (ApiError(422, "Invalid", "denied"), "Kerf can't update it: 422 Invalid: denied", 20),
        (UnreachableError("PATCH /pods/a: refused"), "Kerf can't update it: PATCH /pods/a: refused", 30),
    ],
)
def test_a_pod_that_can_not_be_released_says_why_and_is_tried_ever_later(
    error: ClusterError, said: str, most: int
) -> None:
    rig, num_tries = Rig(), 0

    def fail(name: str, part: str) -> ClusterError | None:
        nonlocal num_tries
        num_tries += not part
        return None if part else error

    rig.node("n", 1)
    rig.pod("a", 1)
    rig.api.fail = fail
    for _ in range(120):
        rig.round(0.5)
    assert rig.why("a") == rig.note("a") == said
    assert 4 <= num_tries <= most
    status, until = rig.api.pods["a"]["status"], rig.now + 60.0
    while "nominatedNodeName" in status and rig.now < until:  # the outcome of the last try is found out a little later
        rig.round(0.5)
        status = rig.api.pods["a"]["status"]
    assert "nominatedNodeName" not in status, "its node is free for others"
    assert rig.ledger.allocation("a") is None
    rig.api.fail = lambda name, part: None
    until = rig.now + 100.0
    while not rig.api.order and rig.now < until:
        rig.round(1.0)
    assert rig.api.order == ["a"]


def test_what_is_one_pods_own_keeps_no_other_waiting() -> None:
    rig = Rig()
    rig.node("n", 2)
    for name in ("bad", "good"):
        rig.pod(name, 1)
    denied = ApiError(422, "Invalid", "denied by a webhook")
    rig.api.fail = lambda name, part: denied if (name, part) == ("bad", "") else None
    rig.round()
    assert rig.api.order == ["good"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (str(forbidden("list", "namespaces", namespace="")), f"Kerf may not list namespaces: {_LACKS}"),
        ("timed out", "the queue plans nothing: its namespaces are not synced yet: timed out"),
    ],
)
def test_a_queue_that_can_not_plan_says_so_on_its_pods(error: str, said: str) -> None:
    rig = Rig()
    rig.node("n", 1)
    rig.pod("a", 2, created="1970-01-01T00:10:00Z")
    reflector = rig.queue.reflectors["namespaces"]
    reflector.num_lists, reflector.last_error = 0, error
    rig.round(2.0)
    assert rig.entry("a").skips.reason is None, "a short fault is not reported"
    rig.round(6.0)
    assert rig.why("a") == said
    reflector.num_lists, reflector.last_error = 1, ""
    rig.round(31.0)
    assert "needs 2 GPUs" in rig.why("a")
    assert rig.entry("a").lacks_room_since == 600.0, "it was waiting for room all the while"


def test_a_right_that_a_part_takes_is_given_by_its_manifest() -> None:
    needs = (Need("", "claims/status", ("patch",), "nothing is written"),)
    of_part = Rights(capability="a part", manifest="manifests/part/rbac.yaml", needs=needs)
    words = str(forbidden("patch", "claims/status"))
    assert str(no_right(words, Grants([of_part]))).endswith("lacks that right, which manifests/part/rbac.yaml gives")
    assert str(no_right(words, Grants())).endswith("lacks that right, which the chart gives")
