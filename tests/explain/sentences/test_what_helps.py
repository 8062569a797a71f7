"""What helps a pod that waits: each remedy in full, and where it is one."""

from collections.abc import Mapping
from typing import Any

import pytest

from extender.core.fit.reasons import Kind, Reason, Remedy
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.explain.sentences.nearest import Nearest
from extender.explain.sentences.remedies import of_gate, of_queue, of_room, of_scheduler, to_json
from extender.planning.wait_reasons import Code
from tests.explain.sentences.test_why_pending import holder

FOUR = GpuRequest(4)
SHORT = Nearest("needs 4 GPUs; n has 3 free", node="n", whole=True, missing=1, reason=Reason.BUSY)
LIKE_N = Remedy(Kind.NODES, "add a node like n", "kerf what-if --waiting --add-node auto")
MOVE = "kerf defrag --for team/p"


def room(nearest: Nearest, request: GpuRequest = FOUR, **more: Any) -> list[Remedy]:
    """What helps team/p, for want of room."""
    known = {"holders": [], "changes": [], "ends_in_s": None} | more
    return of_room("team/p", request, nearest, known["holders"], known["changes"], known["ends_in_s"])


def change(text: str, *nodes: str, what: str = "count") -> Mapping[str, Any]:
    return {"change": what, "text": text, "nodes": nodes}


def test_a_remedy_is_answered_with_its_command_or_none() -> None:
    assert to_json(LIKE_N) == {
        "kind": "nodes",
        "text": "add a node like n",
        "command": "kerf what-if --waiting --add-node auto",
    }
    assert to_json(Remedy(Kind.POD, "ask for less")) == {"kind": "pod", "text": "ask for less", "command": None}


def test_where_there_is_no_queue_the_gate_is_opened() -> None:
    assert of_gate() == [
        Remedy(Kind.SETTING, "turn the queue on (setting queue.enabled)"),
        Remedy(Kind.POD, "remove the gate: docs/guides/queueing.md has the commands that remove all gates"),
    ]


RAISE = Remedy(Kind.SETTING, "raise the quota of namespace team (setting queue.quotas)")


@pytest.mark.parametrize(
    ("limit", "used", "asked", "remedies"),
    [
        pytest.param(
            4.0, 2.0, 4.0, [Remedy(Kind.WAIT, "wait until pods of namespace team end"), RAISE], id="all of it"
        ),
        pytest.param(
            2.5,
            2.0,
            3.0,
            [RAISE, Remedy(Kind.POD, "ask for 2.5 GPUs at most, the whole gang included")],
            id="more than it",
        ),
        pytest.param(4.0, 0.0, 4.0, [RAISE], id="nobody of whom it could wait for"),
    ],
)
def test_what_helps_over_a_quota(limit: float, used: float, asked: float, remedies: list[Remedy]) -> None:
    assert of_queue(Code.OVER_QUOTA.reason(namespace="team", limit=limit, used=used, asked=asked)) == remedies


def test_what_the_queue_says_is_put_into_its_remedies_as_it_may_be_shown() -> None:
    assert of_queue(Code.GANG_INCOMPLETE.reason(gang="a/" + "g" * 100, here=1, size=2)) == [
        Remedy(Kind.POD, f"create the missing pods of gang a/{'g' * 75}...")
    ]
    assert of_queue(Code.GANG_TOO_LARGE.reason(gang="g")) == []
    assert of_queue(Code.KEPT_FOR_HEAD.reason(head="a/b")) == [
        Remedy(Kind.WAIT, "wait for a/b, which comes first"),
        Remedy(Kind.POD, "give it a higher priority"),
    ]
    assert of_queue(Code.NOT_REACHED.reason()) == [Remedy(Kind.WAIT, "wait: Kerf retries it")]


def test_what_helps_against_each_rule_of_kube_scheduler_is_told_and_who_has_more() -> None:
    look = "kubectl describe pod p -n team"
    said = (
        "0/4 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match pod affinity rules, "
        "1 node(s) had untolerated taint {a: b}, 1 Insufficient memory, 1 node(s) were unschedulable"
    )
    assert of_scheduler(said, "team/p") == [
        Remedy(Kind.POD, "tolerate the taint, or remove it from the node", look),
        Remedy(Kind.POD, "change its affinity to other pods", look),
        Remedy(Kind.POD, "ask for less CPU", look),
        Remedy(Kind.POD, "ask for less memory", look),
        Remedy(Kind.NODES, "uncordon the node", look),
    ]
    assert of_scheduler("something new", "team/p") == [
        Remedy(Kind.WAIT, "wait: kube-scheduler retries it within minutes", look)
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "1 min"),
        (29.0, "1 min"),
        (91.0, "2 min"),
        (5399.0, "90 min"),
        (5400.0, "2 h"),
        (9100.0, "3 h"),
        (129599.0, "36 h"),
        (129600.0, "2 d"),
        (216001.0, "3 d"),
    ],
)
def test_those_in_the_way_are_waited_for_with_the_time_in_words(seconds: float, words: str) -> None:
    holders = [holder("a/x", 0), holder("a/y", 1), holder("a/x", 2), holder(None, 3)]
    holders.append(holder("a/comes", 4, state="RESERVED"))
    assert room(SHORT, holders=holders, ends_in_s=seconds) == [
        Remedy(Kind.WAIT, f"wait for a/x and a/y on n to end, expected in {words}"),
        LIKE_N,
    ]


def test_nobody_is_waited_for_where_nobody_runs_or_no_node_is_named() -> None:
    assert room(SHORT, holders=[holder("a/comes", 4, state="RESERVED"), holder(None, 1)]) == [LIKE_N]
    nowhere = Nearest("none", reason=Reason.COMPUTE_BUSY)
    assert room(nowhere, holders=[holder("a/x", 0)]) == []
    assert room(SHORT, holders=[holder("a/x", 0)])[0] == Remedy(Kind.WAIT, "wait for a/x on n to end")


@pytest.mark.parametrize(
    ("nearest", "request_", "text"),
    [
        pytest.param(
            SHORT._replace(free_elsewhere=1),
            FOUR,
            "see which running pods could move: 1 suitable GPU is free on other nodes",
            id="just enough",
        ),
        pytest.param(
            SHORT._replace(free_elsewhere=3, missing=2),
            FOUR,
            "see which running pods could move: 3 suitable GPUs are free on other nodes",
            id="more than enough",
        ),
        pytest.param(
            SHORT._replace(free_elsewhere=2),
            GpuRequest(4, AskedUnit.SHARED),
            "see which running pods could move: 2 suitable GPU replicas are free on other nodes",
            id="time slices",
        ),
        pytest.param(SHORT._replace(free_elsewhere=1, missing=2), FOUR, "", id="too few"),
        pytest.param(SHORT, FOUR, "", id="none"),
        pytest.param(SHORT._replace(free_elsewhere=4, missing=0), FOUR, "", id="nothing is missing"),
        pytest.param(
            SHORT._replace(whole=False, missing=200), FOUR, "see which running pods could move", id="parts of GPUs"
        ),
        pytest.param(
            SHORT._replace(free_elsewhere=4),
            GpuRequest(4, AskedUnit.MIG, mig=(("1g.5gb", 4),)),
            "",
            id="nothing moves for MIG devices",
        ),
    ],
)
def test_moves_help_where_enough_that_would_do_is_free_elsewhere(
    nearest: Nearest, request_: GpuRequest, text: str
) -> None:
    assert room(nearest, request_) == [*([Remedy(Kind.MOVE, text, MOVE)] if text else []), LIKE_N]


def test_two_changes_of_the_request_are_told_each_with_three_nodes() -> None:
    changes = [
        change("room", "z", what="room"),
        change("3 GPUs instead of 4", "a", "b", "c", "d"),
        change("without the condition x for request gpu", "a"),
        change("any model instead of model a", "b"),
    ]
    assert room(SHORT, changes=changes) == [
        Remedy(Kind.POD, "request 3 GPUs instead of 4: fits on a, b, c now"),
        Remedy(Kind.POD, "ask without the condition x for request gpu: fits on a now"),
        LIKE_N,
    ]


def test_what_the_check_itself_says_comes_last_with_its_number() -> None:
    given = Nearest("", node="n", reason=Reason.NO_GPUS, number=1)
    assert room(given) == [Remedy(Kind.NODES, "find out why nodes offer none of their GPUs", "kerf install check")]
    assert room(given._replace(number=0)) == [
        Remedy(Kind.NODES, "add a node with 4 GPUs: no node it may run on has that")
    ]
    assert room(given._replace(reason=Reason.UNHEALTHY, node="n" * 100)) == [
        Remedy(Kind.NODES, f"repair the unhealthy GPUs of {'n' * 77}...", f"kerf top {'n' * 100}")
    ]
