"""The view for a batch: what nodes have free, where pods have room, and what changes that."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from extender.kube.cache import Cache
from extender.kube.objects import Node, Pod
from extender.ledger.bound_pods import BoundPodIndex
from extender.ledger.ledger import Ledger
from extender.planning.plan_state import PlanState
from extender.planning.plans import PlanPod, View
from extender.plugins.pod_demands import offered_of
from extender.queueing import node_view
from extender.queueing.node_view import NodeBook, view_of
from extender.queueing.pods.batches import Room, plan_pod
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.queueing.pods.restrictions import RestrictionKinds
from tests.queueing.rigs import turns_beside

HOSTNAME, ZONE = "kubernetes.io/hostname", "zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
Manifest = dict[str, Any]


def node(name: str, *, zone: str = "", spec: Manifest | None = None, cpu: str = "8", **resources: str) -> Node:
    labels = {HOSTNAME: name} | ({ZONE: zone} if zone else {})
    allocatable = {"cpu": cpu, "memory": "16Gi", "pods": "10"} | {
        f"rdma/{key}": value for key, value in resources.items()
    }
    return decode_node(
        {
            "metadata": {"name": name, "uid": f"u-{name}", "labels": labels},
            "spec": spec or {},
            "status": {"allocatable": allocatable},
        }
    )


NODES = [
    node("a", zone="1", hca="2"),
    node("b", zone="2", hca="2"),
    node("c", zone="3", spec={"taints": [{"key": "t", "effect": "NoSchedule"}]}),
    node("d"),
]


def pod(name: str, *, namespace: str = "ns", on: str = "", leaving: bool = False, app: str = "", **spec: Any) -> Pod:
    metadata: Manifest = {"name": name, "namespace": namespace, "uid": f"u-{name}"}
    metadata |= {"labels": {"app": app}} if app else {}
    metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {}
    container: Manifest = {"ports": [{"hostPort": port} for port in spec.pop("ports", ())]}
    container["resources"] = {"limits": spec.pop("limits", {})}
    return decode_pod(
        {"metadata": metadata, "spec": {"containers": [container], **spec} | ({"nodeName": on} if on else {})}
    )


def term(app: str, topology: str = HOSTNAME, **more: Any) -> Manifest:
    return {"topologyKey": topology, "labelSelector": {"matchLabels": {"app": app}}, **more}


def apart(*terms: Manifest) -> Manifest:
    return {"affinity": {"podAntiAffinity": {REQUIRED: list(terms)}}}


def near(*terms: Manifest) -> Manifest:
    return {"affinity": {"podAffinity": {REQUIRED: list(terms)}}}


def spread(app: str, **more: Any) -> Manifest:
    rule = term(app, ZONE) | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"} | more
    return {"topologySpreadConstraints": [rule], "app": app}


RUNS = [
    pod("r1", on="a", app="x", ports=[80], limits={"rdma/hca": 1}),
    pod("r2", on="b", app="x", leaving=True),
    pod("r3", on="b", namespace="other", **apart(term("kept-off", namespaces=["ns"]))),
    pod("r4", on="d", namespace="other", **apart(term("kept-off", namespaces=["elsewhere"]))),
    pod("r5", on="d", namespace="other", app="x"),
    *(pod(f"z-{name}", on=name, app="z") for name in "ab"),
    pod("r6", on="gone", app="x", ports=[80], limits={"rdma/hca": 1}, **apart(term("kept-off"))),
]


def cluster(nodes: Sequence[Node] = NODES) -> Ledger:
    ledger = Ledger(reservation_ttl_s=1)
    for item in nodes:
        ledger.upsert_node(item)
    return ledger


def crowd(pods: Sequence[Pod] = RUNS) -> BoundPodIndex:
    found = BoundPodIndex()
    for item in pods:
        found.upsert(item)
    return found


def book_of(
    nodes: Sequence[Node] = NODES, runs: BoundPodIndex | None = None
) -> tuple[NodeBook, Cache[Node, Node], list[int]]:
    """A `NodeBook`, the cache that feeds it, and an item for each change that it reports."""
    changes = list[int]()
    cache = Cache[Node, Node](lambda item: item)
    book = NodeBook(cache, lambda: changes.append(1), runs)
    cache.subscribe(book.changed)
    for item in nodes:
        cache.upsert(item)
    return book, cache, changes


def on_its_way(manifest: Pod, kinds: RestrictionKinds, to: str) -> Entry:
    return Entry(manifest, created=0.0, seen=0.0, planned=plan_pod(manifest, kinds), node=to)


def room(view: View, planned: PlanPod) -> str:
    """Names of the nodes on which a pod has room."""
    mask = PlanState(view, [planned]).fits(0)
    return "".join(name for name, row in sorted(view.cluster.row_of.items()) if mask[row])


HCA, TWO_HCA, IN_ZONE_1 = {"limits": {"rdma/hca": 1}}, {"limits": {"rdma/hca": 2}}, {"nodeSelector": {ZONE: "1"}}
BESIDE_RUNNING: list[tuple[Manifest, str]] = [
    ({}, "abd"),
    (HCA, "ab"),
    (TWO_HCA, "b"),
    ({"ports": [80]}, "bd"),
    ({"ports": [81]}, "abd"),
    ({"app": "kept-off"}, "ad"),
    (apart(term("x")), "d"),
    (apart(term("x", namespaceSelector={})), ""),
    (near(term("x")), "ab"),
    (near(term("x", ZONE, namespaces=["other"])), ""),  # it runs on a node without a zone
    (spread("x"), "b"),  # a terminating pod does not count
    (spread("x", maxSkew=2), "ab"),
    (spread("z"), ""),  # tainted nodes count
    (spread("z", nodeTaintsPolicy="Honor"), "ab"),
    (spread("y"), "ab"),
    (spread("x") | IN_ZONE_1, "a"),
    (spread("x", nodeAffinityPolicy="Ignore") | IN_ZONE_1, ""),
]
BESIDE_PLACED: list[tuple[Manifest, Manifest, str]] = [
    (HCA, TWO_HCA, "a"),
    ({"ports": [80]}, {"ports": [80]}, "ad"),
    ({"app": "x"}, apart(term("x")), "ad"),
    (apart(term("y")), {"app": "y"}, "ad"),
    (apart(term("y", namespaces=["other"])), {"app": "y"}, "abd"),
    ({"app": "x"}, near(term("x")), "b"),
    ({"app": "x"}, spread("x"), "a"),
]


def test_where_a_pod_has_room_beside_those_that_run_and_those_on_their_way() -> None:
    ledger, runs = cluster(), crowd()
    for spec, where in BESIDE_RUNNING:
        kinds = RestrictionKinds()
        planned = plan_pod(pod("p", **spec), kinds)
        at_once = view_of(ledger.snapshot(0), NODES, kinds, [planned], num_pods=runs.num_pods, crowd=runs)
        in_turns = asyncio.run(book_of(runs=runs)[0].view(ledger.snapshot(0), kinds, [planned], (), 0.0))
        assert (room(at_once, planned), room(in_turns, planned)) == (where, where), spec
    untainted = [item for item in NODES if item.metadata.name != "c"]
    for way, spec, where in BESIDE_PLACED:
        kinds = RestrictionKinds()
        planned = plan_pod(pod("p", **spec), kinds)
        others = [on_its_way(pod(name, **way), kinds, to) for name, to in (("w", "b"), ("v", "gone"))]
        view = asyncio.run(book_of(untainted)[0].view(cluster(untainted).snapshot(0), kinds, [planned], others, 0.0))
        assert room(view, planned) == where, (way, spec)


def test_the_pods_that_rules_are_about_are_counted_in_portions() -> None:
    kinds, ledger = RestrictionKinds(), cluster()
    planned = plan_pod(pod("p", **near(term("x"))), kinds)

    def turns(num_pods: int) -> int:
        book, _, _ = book_of(runs=crowd([pod(f"r{number}", on="a", app="x") for number in range(num_pods)]))
        return turns_beside(book.view(ledger.snapshot(0), kinds, [planned], (), 0.0))

    assert (turns(255) - turns(0), turns(512) - turns(255)) == (0, 2)


def test_nothing_is_computed_where_no_rule_concerns_the_batch() -> None:
    kinds, ledger = RestrictionKinds(), cluster()
    others = [on_its_way(pod("w", app="x"), kinds, "b")]
    of_another = plan_pod(pod("p", namespace="third", app="kept-off"), kinds)
    book, _, _ = book_of(runs=crowd())
    for batch in ([], [of_another]):
        assert asyncio.run(book.view(ledger.snapshot(0), kinds, batch, others, 0.0)).neighbours is None
        assert view_of(ledger.snapshot(0), NODES, kinds, batch, crowd=crowd()).neighbours is None
    meant = plan_pod(pod("p", app="kept-off"), kinds)
    assert asyncio.run(book.view(ledger.snapshot(0), kinds, [meant], (), 0.0)).neighbours is not None
    everybody = crowd([pod("r", on="a", **apart(term("kept-off", namespaceSelector={})))])
    view = view_of(ledger.snapshot(0), NODES, kinds, [of_another], crowd=everybody)
    assert room(view, of_another) == "bd"


def test_a_view_is_less_the_reserve_and_plus_what_leaving_pods_free() -> None:
    kinds, ledger = RestrictionKinds(), cluster([node("a"), node("b", cpu="2")])
    ledger.upsert_pod(pod("r", on="a", limits={"cpu": "3"}), 0.0)
    nodes = [node("b", cpu="2"), node("a", zone="1"), node("untold", zone="2")]
    batch = [PlanPod("ns/g", gang="g", topology=ZONE), PlanPod("ns/p")]
    left = [("a", Room(1000, 2048, 2)), ("gone", Room(1, 1, 1))]
    view = view_of(ledger.snapshot(0), nodes, kinds, batch, num_pods={"a": 4}, left=left, reserve_frac=0.3)
    assert view.cluster.node_names[:2] == ("a", "b")
    assert view.cpu_allocatable_milli.tolist() == [8000, 2000]
    assert view.memory_allocatable_mib.tolist() == [16384, 16384]
    assert view.cpu_free_milli.tolist() == [8000 - 3000 - 2400 + 1000, 1400]
    assert view.memory_free_mib.tolist() == [16384 - 4916 + 2048, 16384 - 4916]  # 30 % of 16384 are 4915.2
    assert view.pods_free.tolist() == [10 - 4 + 2, 10]
    assert view.room_of_empty().tolist() == [[5600, 1400], [11468, 11468], [10, 10]]
    assert {key: domains.tolist() for key, domains in view.domains.items()} == {ZONE: [0, -1]}
    kinds.kind_of(pod("p", nodeSelector={ZONE: "9"}).spec)
    plain = view_of(ledger.snapshot(0), nodes, kinds, num_pods={"a": 11})
    assert list(plain.refusals) == [1]
    assert plain.refusals == kinds.refusals()
    assert (plain.cpu_free_milli.tolist(), plain.pods_free.tolist()) == ([5000, 2000], [0, 10])


def test_a_pod_on_its_way_counts_until_the_watch_tells_that_it_runs_and_closed_nodes_take_nobody() -> None:
    kinds, ledger = RestrictionKinds(), cluster([node("a"), node("b")])
    book, _, _ = book_of([node("a"), node("b")])
    on_way = [on_its_way(pod("w", limits={"cpu": "2", "memory": "1Gi"}), kinds, "b")]
    unplanned = Entry(pod("odd"), created=0.0, seen=0.0, node="b")
    view = asyncio.run(book.view(ledger.snapshot(0), kinds, (), [*on_way, unplanned], 0.0, ["a", "gone"]))
    assert view.cpu_free_milli.tolist() == [8000, 6000]
    assert view.memory_free_mib.tolist() == [16384, 15360]
    assert view.pods_free.tolist() == [0, 9]
    book.bound_pod_index.upsert(pod("w", on="b"))
    view = asyncio.run(book.view(ledger.snapshot(0), kinds, (), on_way, 0.0))
    assert view.cpu_free_milli.tolist() == [8000, 8000]
    assert view.pods_free.tolist() == [10, 9]


def test_only_labels_spec_and_allocatable_of_a_node_change_its_version() -> None:
    book, cache, changes = book_of([node("a"), node("b")])
    told = decode_node({"metadata": {"name": "a", "uid": "u-a", "resourceVersion": "9", "labels": {HOSTNAME: "a"}}})
    told.status.allocatable, told.spec = node("a").status.allocatable, node("a").spec
    assert (len(changes), book.version_of("a"), book.version_of("b"), book.version_of("gone")) == (2, 1, 2, 0)
    cache.upsert(told)
    assert (len(changes), book.version_of("a")) == (2, 1), "a heartbeat"
    for number, changed in enumerate(
        (node("a", zone="1"), node("a", zone="1", spec={"unschedulable": True}), node("a"))
    ):
        cache.upsert(changed)
        assert (len(changes), book.version_of("a"), book.version_of("b")) == (3 + number, 3 + number, 2)
    cache.upsert(node("a", cpu="4"))
    cache.remove(node("b"))
    assert (len(changes), book.version_of("a"), book.version_of("b")) == (7, 6, 0)
    book.changed(node("unheard-of"), None)
    assert (len(changes), book.version_of("unheard-of")) == (8, 0)


def test_the_object_labels_and_domain_of_a_node_by_its_name() -> None:
    book, _, _ = book_of([node("a", zone="1"), decode_node({"metadata": {"name": "plain", "uid": "u"}})])
    assert ("a" in book, "gone" in book) == (True, False)
    found = book.get("a")
    assert found is not None
    assert (found.metadata.name, book.get("gone")) == ("a", None)
    assert [book.labels_of(name) for name in ("a", "plain", "gone")] == [{HOSTNAME: "a", ZONE: "1"}, {}, {}]
    assert [book.domain_of(name, ZONE) for name in ("a", "plain", "gone")] == [{ZONE: "1"}, {}, {}]


def test_a_view_is_of_the_nodes_and_rows_of_its_moment() -> None:
    kinds, ledger = RestrictionKinds(), cluster([node("a"), node("b")])
    book, cache, _ = book_of([node("a"), node("b")])

    def cpu() -> dict[str, int]:
        view = asyncio.run(book.view(ledger.snapshot(0), kinds, (), (), 0.0))
        return {name: int(view.cpu_allocatable_milli[row]) for name, row in view.cluster.row_of.items()}

    assert cpu() == {"a": 8000, "b": 8000}
    cache.upsert(node("b", cpu="4"))
    assert cpu() == {"a": 8000, "b": 4000}
    ledger.upsert_node(node("c"))
    assert cpu() == {"a": 8000, "b": 4000, "c": 0}, "of which only the ledger was told"
    cache.upsert(node("c", cpu="2"))
    assert cpu() == {"a": 8000, "b": 4000, "c": 2000}


def test_what_nodes_offer_is_looked_up_once_until_a_node_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def look(item: Node, resource: str) -> int:
        looks.append(f"{item.metadata.name} {resource}")
        return offered_of(item, resource)

    monkeypatch.setattr(node_view, "offered_of", look)
    kinds, ledger = RestrictionKinds(), cluster()
    planned = plan_pod(pod("p", limits={"rdma/hca": 2}), kinds)
    book, cache, _ = book_of(runs=crowd())
    every = [f"{name} rdma/hca" for name in "abcd"]
    for changed in (None, None, node("d", hca="2")):
        if changed is not None:
            cache.upsert(changed)
        view = asyncio.run(book.view(ledger.snapshot(0), kinds, [planned], (), 0.0))
        assert room(view, planned) == ("b" if changed is None else "bd")
        assert looks == every * (1 if changed is None else 2)


def test_any_number_of_resources_may_be_asked_for() -> None:
    many: dict[str, Any] = {f"r{number}": str(number) for number in range(1, 71)}
    kinds, ledger = RestrictionKinds(), cluster([node("a", **many)])
    book, _, _ = book_of([node("a", **many)])
    for number in range(1, 71):
        fits, exceeds = (plan_pod(pod("p", limits={f"rdma/r{number}": asked}), kinds) for asked in (number, number + 1))
        view = asyncio.run(book.view(ledger.snapshot(0), kinds, [fits, exceeds], (), 0.0))
        assert (room(view, fits), room(view, exceeds)) == ("a", "")
