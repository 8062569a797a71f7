"""Pods by node: sums that come and go with pods, in whichever order they are reported."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from extender.ledger.bound_pods import BoundPodIndex
from extender.planning.demands import HostPort
from extender.queueing.pods.objects import decode_pod


def pod(uid: str, node: str, app: str, units: int, port: int, lonely: bool, leaving: bool) -> Any:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}} if lonely else None
    container = {"resources": {"limits": {"rdma/hca": units}}, "ports": [{"hostPort": port}] if port else []}
    metadata = {"name": uid, "namespace": app, "uid": uid, "labels": {"app": app}}
    metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {}
    return decode_pod(
        {"metadata": metadata, "spec": {"nodeName": node, "containers": [container], "affinity": affinity}}
    )


EVENTS = st.tuples(
    *(st.sampled_from("abcd"), st.sampled_from("mn"), st.integers(0, 2), st.sampled_from([0, 80, 81])),
    *(st.booleans(), st.booleans(), st.booleans()),
)


@given(st.lists(EVENTS, max_size=30))
def test_the_last_report_of_each_pod_counts(events: list[Any]) -> None:
    index, last = BoundPodIndex(), dict[str, Any]()
    for uid, node, units, port, lonely, leaving, gone in events:
        if gone:
            index.remove(uid)
            last.pop(uid, None)
        else:
            last[uid] = pod(uid, node, "x" if uid in "ab" else "y", units, port, lonely, leaving)
            index.upsert(last[uid])
    fresh = BoundPodIndex()
    for one in last.values():
        fresh.upsert(one)
    for found in (index, BoundPodIndex.unpacked(asyncio.run(index.packed(labels=True)))):
        assert (found.num_pods, dict(found.used("rdma/hca"))) == (fresh.num_pods, dict(fresh.used("rdma/hca")))
        assert {key: dict(on) for key, on in found.repelling().items()} == dict(fresh.repelling())
        for number in (80, 81):
            held = {port: dict(on) for port, on in found.holding("TCP", number)}
            assert held == {port: dict(on) for port, on in fresh.holding("TCP", number)}
        known, expected = (sorted((pod.uid, pod.node, pod.leaving) for pod in of.of(None)) for of in (found, fresh))
        assert (known, len(found)) == (expected, len(last))
    for uid in last:
        index.remove(uid)
    assert not (len(index) or index.num_pods or index.used("rdma/hca") or index.repelling())
    assert list(index.holding("TCP", 80)) == []


def test_a_port_counts_on_each_address() -> None:
    index = BoundPodIndex()
    index.upsert(pod("a", "n", "x", 0, 80, False, False))
    assert list(index.holding("TCP", 80)) == [(HostPort("TCP", 80, "0.0.0.0"), {"n": 1})]  # noqa: S104


def test_the_anti_affinity_terms_of_a_namespace_are_bounded() -> None:
    index = BoundPodIndex()
    for number in range(1_000):
        one = pod(f"p{number}", "n", "x", 0, 0, True, False)
        one.spec.affinity.pod_anti_affinity.required[0].topology_key = str(number)
        index.upsert(one)
    assert len(index.repelling()) == 256
    for number in range(1_000):
        index.remove(f"p{number}")
    assert not index.repelling()
