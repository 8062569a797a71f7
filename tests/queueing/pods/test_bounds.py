"""Node restrictions of pods are bounded: neither one pod nor thousands block the event loop."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

from extender.core.resources.requests import RequestError
from extender.queueing.node_view import NodeBook
from extender.queueing.pods.batches import plan_pod
from extender.queueing.pods.objects import _MAX_EXPRESSIONS, _MAX_TERMS, _MAX_TOLERATIONS, _MAX_VALUES
from extender.queueing.pods.restrictions import RestrictionKinds
from tests.queueing.rigs import Rig
from tests.queueing.watches import pod

HOSTNAME: Final = "kubernetes.io/hostname"
EXISTS: Final = {"key": HOSTNAME, "operator": "Exists"}
BY_NAME: Final = {"key": "metadata.name", "operator": "NotIn", "values": ["n"]}
SELECTOR: Final = {"nodeSelector": {"a": "b"}}
Spec = dict[str, Any]


def affine(*terms: list[dict[str, Any]], field: str = "matchExpressions") -> Spec:
    required = {"nodeSelectorTerms": [{field: term} for term in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def not_in(number: int) -> dict[str, Any]:
    return {"key": HOSTNAME, "operator": "NotIn", "values": [f"x{value}" for value in range(number)]}


CONDITIONS: Final = "1,001 conditions on labels of nodes"
TOO_MUCH: list[tuple[Callable[[int], Spec], int, str]] = [
    (lambda n: affine(*[[EXISTS]] * n), _MAX_TERMS, "101 terms in its node affinity .* write 100 at most"),
    (lambda n: affine([EXISTS] * 9, [EXISTS] * (n - 9)), _MAX_EXPRESSIONS, CONDITIONS),
    (lambda n: affine([BY_NAME] * (n - 1), field="matchFields") | SELECTOR, _MAX_EXPRESSIONS, CONDITIONS),
    (lambda n: affine([not_in(n - 1)], [not_in(1)]), _MAX_VALUES, "10,001 values in its node affinity"),
    (lambda n: {"tolerations": [EXISTS] * n}, _MAX_TOLERATIONS, "1,001 tolerations"),
]


def test_a_pod_with_too_many_restrictions_is_not_read() -> None:
    for said, most, what in TOO_MUCH:
        plan_pod(pod(spec=said(most)), RestrictionKinds())
        with pytest.raises(RequestError, match=what):
            plan_pod(pod(spec=said(most + 1)), RestrictionKinds())


def test_a_pod_of_a_megabyte_of_terms_waits_with_the_reason_and_delays_no_other() -> None:
    rig = Rig()
    rig.node("n", 2)
    rig.pod("large", 1, spec=affine(*[[EXISTS]] * 18_000))
    rig.pod("small", 1)
    rig.round()
    assert "18,000 terms in its node affinity are too many to be read" in str(rig.entry("large").fault)
    assert (rig.node_of("large"), rig.node_of("small")) == ("", "n")


def test_where_many_kinds_may_go_is_worked_out_in_portions() -> None:
    """Each is within the bounds, but together they take longer than a Lease lasts."""
    rig, kinds = Rig(), RestrictionKinds()
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
        await asyncio.sleep(0)
        began = time.thread_time()
        book: NodeBook = rig.queue.nodes
        view = await book.view(rig.ledger.snapshot(0.0), kinds, (), (), 0.0)
        assert view.allowed.shape == (16, 250)
        assert view.allowed.all()
        ticking.cancel()
        return time.thread_time() - began

    took_s = asyncio.run(story())
    assert longest_s[0] < took_s / 2
