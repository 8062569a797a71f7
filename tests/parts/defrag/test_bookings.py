"""What a node gets back when a pod goes is what it would have if the pod had never been there."""

import numpy as np
import pytest

from extender.core.bookings import book, bookable
from extender.kube import objects
from extender.ledger.ledger import Ledger
from extender.parts.defrag.movable import _booking_of, _gpus_held
from extender.plugins.holdings import Holding, Part, whole_gpus
from tests.api.bodies import Manifest, node, pod

import msgspec  # isort: skip

SHARE = {"kerf.dev/gpu-share": "400", "kerf.dev/assigned-share": "400", "kerf.dev/assigned-memory-mib": "8192"}


def held(name: str, gpus: int | None, assigned: str | None, **annotations: str) -> Manifest:
    given = {} if assigned is None else {"kerf.dev/assigned-gpus": assigned}
    return pod(name, gpus, node_name="n", annotations={**given, **annotations})


@pytest.mark.parametrize(
    ("machine", "pods"),
    [
        pytest.param(node("n", 4), [held("a", 2, "0,3"), held("b", 1, "1")], id="whole"),
        pytest.param(node("n", 4), [held("a", 2, None), held("b", 1, "1")], id="of unknown index"),
        pytest.param(node("n", 4), [held("a", None, "0", **SHARE), held("b", None, "0", **SHARE)], id="shares"),
        pytest.param(node("n", 4), [held("a", None, "0", **SHARE), held("b", 2, "1,2")], id="shares and whole ones"),
        pytest.param(node("n", shared=4), [pod("a", node_name="n", annotations={}), held("b", 1, None)], id="slices"),
        pytest.param(node("n", 4), [pod("a", node_name="n"), held("b", 4, "0,1,2,3")], id="one without GPUs"),
    ],
)
def test_all_who_go_leave_an_empty_node(machine: Manifest, pods: list[Manifest]) -> None:
    ledger = Ledger(reservation_ttl_s=30.0)
    ledger.upsert_node(msgspec.convert(machine, objects.Node))
    empty = ledger.snapshot(0.0)
    sizes = {}
    for manifest in pods:
        one = msgspec.convert(manifest, objects.Pod)
        ledger.upsert_pod(one, 0.0)
        sizes[one.metadata.uid] = (4000, 16 * 1024)
    found = bookable(ledger.snapshot(0.0))
    for claim in ledger.claims_on("n"):
        book(found, 0, _booking_of(found, 0, claim.held, *sizes.pop(claim.uid)), 1)
    for cpu, memory in sizes.values():
        book(found, 0, _booking_of(found, 0, Holding(0), cpu, memory), 1)
    for name in ("gpu_free_milli", "gpu_free_mib", "gpu_slices", "untracked_units", "num_served", "num_unserved",
                 "cpu_free_milli", "memory_free_mib"):  # fmt: skip
        assert np.array_equal(getattr(found, name), getattr(empty, name)), name


def test_gpus_are_counted_as_parts_of_one() -> None:
    assert _gpus_held(whole_gpus(3)) == 3
    assert _gpus_held(Holding(2, (Part(0, 500, 1024), Part(1, 250, 1024)))) == 0.75
    assert _gpus_held(Holding(0, (), (("1g.10gb", 2),))) == 0
