"""What a pod says of nodes is bounded: neither one pod nor a crowd makes others of the event loop wait."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from extender.core.resources.requests import RequestError
from extender.queueing.node_view import NodeBook
from extender.queueing.pods.batches import plan_pod
from extender.queueing.pods.objects import _MAX_EXPRESSIONS, _MAX_TERMS, _MAX_TOLERATIONS, _MAX_VALUES
from extender.queueing.pods.restrictions import Kinds
from tests.queueing.rigs import Rig
from tests.queueing.watches import pod

HOSTNAME: Final = "kubernetes.io/hostname"
EXISTS: Final = {"key": HOSTNAME, "operator": "Exists"}
Spec = dict[str, Any]


def affine(*terms: list[dict[str, Any]], field: str = "matchExpressions") -> Spec:
    required = {"nodeSelectorTerms": [{field: term} for term in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def terms(number: int) -> Spec:
    return affine(*[[EXISTS]] * number)


def expressions(number: int) -> Spec:
    return affine([EXISTS] * (number // 2), [EXISTS] * (number - number // 2))


def fields_and_labels(number: int) -> Spec:
    by_name = [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}]
    return affine(by_name * (number - 1), field="matchFields") | {"nodeSelector": {"a": "b"}}


def values(number: int) -> Spec:
    named = [str(value) for value in range(number - 1)]
    return affine([{"key": HOSTNAME, "operator": "NotIn", "values": part} for part in (named, ["x"])])


def tolerations(number: int) -> Spec:
    return {"tolerations": [{"key": str(key), "operator": "Exists"} for key in range(number)]}


@pytest.mark.parametrize(
    ("said", "most", "what"),
    [
        (terms, _MAX_TERMS, "101 terms in its node affinity are too many to be read: write 100 at most"),
        (expressions, _MAX_EXPRESSIONS, "1,001 conditions on labels of nodes are too many"),
        (fields_and_labels, _MAX_EXPRESSIONS, "1,001 conditions on labels of nodes are too many"),
        (values, _MAX_VALUES, "10,001 values in its node affinity are too many"),
        (tolerations, _MAX_TOLERATIONS, "1,001 tolerations are too many"),
    ],
)
def test_who_says_too_much_of_nodes_is_not_read(said: Callable[[int], Spec], most: int, what: str) -> None:
    plan_pod(pod(spec=said(most)), Kinds())
    with pytest.raises(RequestError, match=what):
        plan_pod(pod(spec=said(most + 1)), Kinds())


def test_a_pod_of_a_megabyte_of_terms_waits_with_the_reason_and_holds_up_nobody() -> None:
    rig = Rig()
    rig.node("n", 2)
    for name, spec in (("large", terms(18_000)), ("small", {})):
        rig.pod(name, 1)
        rig.api.pods[name]["spec"] |= spec
        rig.told(name)
    asyncio.run(rig.queue.run_round())
    fault = rig.queue.backlog.entries["large"].fault
    assert "18,000 terms in its node affinity are too many to be read" in str(fault)
    assert (rig.node_of("large"), rig.node_of("small")) == ("", "n")


def test_where_many_kinds_may_go_is_worked_out_in_portions() -> None:
    """Each pod within the bounds, a crowd of them longer than a Lease lasts."""
    rig, kinds = Rig(), Kinds()
    for number in range(250):
        rig.node(f"n{number}", 2, **{HOSTNAME: f"n{number}"})
    for number in range(15):
        wanted = [{"key": HOSTNAME, "operator": "NotIn", "values": [f"x{number}-{at}"]} for at in range(1_000)]
        kinds.kind_of(pod(spec=affine(wanted)).spec)
    longest_s = [0.0]

    async def tick() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest_s[0], last = max(longest_s[0], now - last), now

    async def story() -> float:
        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0.01)
        began = time.thread_time()
        book: NodeBook = rig.queue.nodes
        view = await book.view(rig.ledger.snapshot(0.0), kinds, (), (), 0.0)
        assert view.allowed.shape == (16, 250)
        assert view.allowed.all()
        ticking.cancel()
        return time.thread_time() - began

    took_s = asyncio.run(story())
    assert longest_s[0] < took_s / 2
