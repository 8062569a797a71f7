"""What a batch is planned on: what nodes have left, where each pod has room, and what makes that another."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from extender.kube.cache import Cache
from extender.kube.objects import Node, Pod
from extender.ledger.ledger import Ledger
from extender.ledger.tenants import Crowd
from extender.planning.plan_state import PlanState
from extender.planning.plans import PlanPod, View
from extender.plugins.pod_demands import offered_of
from extender.queueing import node_view
from extender.queueing.node_view import NodeBook, view_of
from extender.queueing.pods.batches import Room, plan_pod
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.queueing.pods.restrictions import Kinds

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


def crowd(pods: Sequence[Pod] = RUNS) -> Crowd:
    found = Crowd()
    for item in pods:
        found.upsert(item)
    return found


def book_of(nodes: Sequence[Node] = NODES, runs: Crowd | None = None) -> tuple[NodeBook, Cache[Node, Node], list[int]]:
    """It, what tells it, and an item for each time it tells of a change."""
    changes = list[int]()
    cache = Cache[Node, Node](lambda item: item)
    book = NodeBook(cache, lambda: changes.append(1), runs)
    cache.subscribe(book.changed)
    for item in nodes:
        cache.upsert(item)
    return book, cache, changes


def on_its_way(manifest: Pod, kinds: Kinds, to: str) -> Entry:
    return Entry(manifest, created=0.0, seen=0.0, planned=plan_pod(manifest, kinds), node=to)


def room(view: View, planned: PlanPod) -> str:
    """Names of the nodes on which a pod has room."""
    mask = PlanState(view, [planned]).fits(0)
    return "".join(name for name, row in sorted(view.cluster.row_of.items()) if mask[row])


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        pytest.param({}, "abd", id="nothing wanted"),
        pytest.param({"limits": {"rdma/hca": 1}}, "ab", id="a resource"),
        pytest.param({"limits": {"rdma/hca": 2}}, "b", id="more of it than is left"),
        pytest.param({"ports": [80]}, "bd", id="a port"),
        pytest.param({"ports": [81]}, "abd", id="another port"),
        pytest.param({"app": "kept-off"}, "ad", id="whom others keep off"),
        pytest.param(apart(term("x")), "d", id="away from some"),
        pytest.param(apart(term("x", namespaceSelector={})), "", id="away from some of all namespaces"),
        pytest.param(near(term("x")), "ab", id="near to some"),
        pytest.param(near(term("x", ZONE, namespaces=["other"])), "", id="near to some without a zone"),
        pytest.param(spread("x"), "b", id="spread, who is being deleted not counted"),
        pytest.param(spread("x", maxSkew=2), "ab", id="spread less evenly"),
        pytest.param(spread("z"), "", id="spread over tainted nodes too"),
        pytest.param(spread("z", nodeTaintsPolicy="Honor"), "ab", id="spread over nodes without taints"),
        pytest.param(spread("y"), "ab", id="spread of nobody"),
        pytest.param(spread("x") | {"nodeSelector": {ZONE: "1"}}, "a", id="spread over the nodes that it chooses"),
        pytest.param(
            spread("x", nodeAffinityPolicy="Ignore") | {"nodeSelector": {ZONE: "1"}}, "", id="spread over all nodes"
        ),
    ],
)
def test_where_a_pod_has_room_beside_those_that_run(spec: Manifest, where: str) -> None:
    kinds = Kinds()
    planned = plan_pod(pod("p", **spec), kinds)
    ledger, runs = cluster(), crowd()
    at_once = view_of(ledger.snapshot(0), NODES, kinds, [planned], num_pods=runs.num_pods, crowd=runs)
    assert room(at_once, planned) == where
    book, _, _ = book_of(runs=runs)
    in_turns = asyncio.run(book.view(ledger.snapshot(0), kinds, [planned], (), 0.0))
    assert room(in_turns, planned) == where


@pytest.mark.parametrize(
    ("way", "spec", "where"),
    [
        pytest.param({"limits": {"rdma/hca": 1}}, {"limits": {"rdma/hca": 2}}, "a", id="a resource"),
        pytest.param({"ports": [80]}, {"ports": [80]}, "ad", id="a port"),
        pytest.param({"app": "x"}, apart(term("x")), "ad", id="away from it"),
        pytest.param(apart(term("y")), {"app": "y"}, "ad", id="kept off by it"),
        pytest.param(apart(term("y", namespaces=["other"])), {"app": "y"}, "abd", id="that keeps off others"),
        pytest.param({"app": "x"}, near(term("x")), "b", id="near to it"),
        pytest.param({"app": "x"}, spread("x"), "a", id="spread"),
    ],
)
def test_where_a_pod_has_room_beside_those_on_their_way(way: Manifest, spec: Manifest, where: str) -> None:
    kinds = Kinds()
    planned = plan_pod(pod("p", **spec), kinds)
    others = [on_its_way(pod("w", **way), kinds, "b"), on_its_way(pod("v", **way), kinds, "gone")]
    book, _, _ = book_of([item for item in NODES if item.metadata.name != "c"])
    ledger = cluster([item for item in NODES if item.metadata.name != "c"])
    view = asyncio.run(book.view(ledger.snapshot(0), kinds, [planned], others, 0.0))
    assert room(view, planned) == where


def test_whom_rules_are_about_is_counted_in_portions_so_that_others_have_their_turns() -> None:
    kinds, ledger = Kinds(), cluster()
    planned = plan_pod(pod("p", **near(term("x"))), kinds)

    def turns(num_pods: int) -> int:
        book, _, _ = book_of(runs=crowd([pod(f"r{number}", on="a", app="x") for number in range(num_pods)]))

        async def count() -> int:
            found = 0

            async def others() -> None:
                nonlocal found
                while True:
                    found += 1
                    await asyncio.sleep(0)

            beside = asyncio.create_task(others())
            await book.view(ledger.snapshot(0), kinds, [planned], (), 0.0)
            beside.cancel()
            return found

        return asyncio.run(count())

    assert (turns(255) - turns(0), turns(512) - turns(255)) == (0, 2)


def test_where_nobody_has_to_reckon_with_anybody_nothing_is_worked_out() -> None:
    kinds, ledger = Kinds(), cluster()
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


def test_a_view_has_what_is_kept_taken_off_and_what_goes_given_back() -> None:
    kinds, ledger = Kinds(), cluster([node("a"), node("b", cpu="2")])
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
    plain = view_of(ledger.snapshot(0), nodes, kinds, num_pods={"a": 11})
    assert (plain.cpu_free_milli.tolist(), plain.pods_free.tolist()) == ([5000, 2000], [0, 10])


def test_a_pod_on_its_way_counts_until_the_watch_tells_that_it_runs_and_closed_nodes_take_nobody() -> None:
    kinds, ledger = Kinds(), cluster([node("a"), node("b")])
    book, _, _ = book_of([node("a"), node("b")])
    on_way = [on_its_way(pod("w", limits={"cpu": "2", "memory": "1Gi"}), kinds, "b")]
    unplanned = Entry(pod("odd"), created=0.0, seen=0.0, node="b")
    view = asyncio.run(book.view(ledger.snapshot(0), kinds, (), [*on_way, unplanned], 0.0, ["a", "gone"]))
    assert view.cpu_free_milli.tolist() == [8000, 6000]
    assert view.memory_free_mib.tolist() == [16384, 15360]
    assert view.pods_free.tolist() == [0, 9]
    book.crowd.upsert(pod("w", on="b"))
    view = asyncio.run(book.view(ledger.snapshot(0), kinds, (), on_way, 0.0))
    assert view.cpu_free_milli.tolist() == [8000, 8000]
    assert view.pods_free.tolist() == [10, 9]


def test_of_a_node_its_labels_its_spec_and_what_it_offers_are_news_and_nothing_else() -> None:
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


def test_what_is_known_of_a_node_by_its_name() -> None:
    book, _, _ = book_of([node("a", zone="1"), decode_node({"metadata": {"name": "plain", "uid": "u"}})])
    assert ("a" in book, "gone" in book) == (True, False)
    found = book.get("a")
    assert found is not None
    assert (found.metadata.name, book.get("gone")) == ("a", None)
    assert [book.labels_of(name) for name in ("a", "plain", "gone")] == [{HOSTNAME: "a", ZONE: "1"}, {}, {}]
    assert [book.domain_of(name, ZONE) for name in ("a", "plain", "gone")] == [{ZONE: "1"}, {}, {}]


def test_a_view_is_of_the_nodes_and_rows_of_its_moment() -> None:
    kinds, ledger = Kinds(), cluster([node("a"), node("b")])
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
    kinds, ledger = Kinds(), cluster()
    planned = plan_pod(pod("p", limits={"rdma/hca": 2}), kinds)
    book, cache, _ = book_of(runs=crowd())
    every = [f"{name} rdma/hca" for name in "abcd"]
    for changed in (None, None, node("d", hca="2")):
        if changed is not None:
            cache.upsert(changed)
        view = asyncio.run(book.view(ledger.snapshot(0), kinds, [planned], (), 0.0))
        assert room(view, planned) == ("b" if changed is None else "bd")
        assert looks == every * (1 if changed is None else 2)


def test_why_a_pod_may_go_nowhere_is_told_with_the_view() -> None:
    kinds, ledger = Kinds(), cluster()
    planned = plan_pod(pod("p", nodeSelector={ZONE: "9"}), kinds)
    view = view_of(ledger.snapshot(0), NODES, kinds, [planned])
    assert view.refusals == kinds.refusals()
    assert [str(why) for why in view.refusals.values()] == ["no node matches its selector and tolerations"]


def test_a_node_that_was_there_before_anybody_told_of_it_may_go() -> None:
    changes = list[int]()
    book = NodeBook(Cache[Node, Node](lambda item: item), lambda: changes.append(1))
    book.changed(node("a"), None)
    assert (changes, book.version_of("a")) == ([1], 0)


def test_any_number_of_resources_may_be_asked_for() -> None:
    many: dict[str, Any] = {f"r{number}": str(number) for number in range(1, 71)}
    kinds, ledger = Kinds(), cluster([node("a", **many)])
    book, _, _ = book_of([node("a", **many)])
    for number in range(1, 71):
        fits, exceeds = (plan_pod(pod("p", limits={f"rdma/r{number}": asked}), kinds) for asked in (number, number + 1))
        view = asyncio.run(book.view(ledger.snapshot(0), kinds, [fits, exceeds], (), 0.0))
        assert (room(view, fits), room(view, exceeds)) == ("a", "")
