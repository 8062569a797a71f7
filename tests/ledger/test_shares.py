"""Parts of GPUs in the ledger: what is booked on each, by whom, and what that leaves."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.annotations import COUNT, MEMORY_EACH, SHARE
from extender.core.clusters import Cluster
from extender.core.policies.registry import POLICIES
from extender.core.resources.requests import GpuRequest
from extender.kube import objects
from extender.ledger.ledger import Ledger
from extender.plugins.holdings import Holding, Part, whole_gpus
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_MEMORY, ASSIGNED_SHARE, ASSIGNED_UUIDS, GPUS
from extender.plugins.pod_resources import read_compute
from extender.plugins.pods import read_holding, read_pod_request
from extender.scheduling.placer import Placer, PodIdentity
from tests.ledger.builders import Clock, node_manifest, node_object, pod_manifest, pod_object

MIB = 15360
"""Memory of a T4, which the nodes here have."""


def ledger_of(**gpus: int) -> Ledger:
    ledger = Ledger(reservation_ttl_s=30.0)
    for name, num_gpus in gpus.items():
        ledger.upsert_node(node_object(name, num_gpus))
    return ledger


def free(ledger: Ledger, node: str = "n") -> list[tuple[int, int]]:
    """(milli, MiB) free of each GPU."""
    cluster = ledger.snapshot(0.0)
    row = cluster.row_of[node]
    installed = cluster.gpu_model[row] >= 0
    milli, mib = cluster.gpu_free_milli[row][installed].tolist(), cluster.gpu_free_mib[row][installed].tolist()
    return list(zip(milli, mib, strict=True))


def untracked(ledger: Ledger, node: str = "n") -> int:
    cluster = ledger.snapshot(0.0)
    return int(cluster.untracked_units[cluster.row_of[node]])


def sharing_pod(name: str, gpus: str, milli: str = "500", mib: str = "4096", **annotations: str) -> objects.Pod:
    """A pod bound to node n that asks for what it was given."""
    asked = {SHARE: milli, MEMORY_EACH: mib} if milli != "0" else {MEMORY_EACH: mib}
    given_ = {ASSIGNED_GPUS: gpus, ASSIGNED_SHARE: milli, ASSIGNED_MEMORY: mib}
    return pod_object(name, node="n", annotations=asked | given_ | annotations)


def mib_of(name: str) -> dict[str, str]:
    return {MEMORY_EACH: name}


def test_shares_add_up_on_their_gpu() -> None:
    ledger = ledger_of(n=2)
    ledger.upsert_pod(sharing_pod("a", "1", "400", "4096"), 0.0)
    ledger.upsert_pod(sharing_pod("b", "1", "600", "1024"), 0.0)
    assert free(ledger) == [(1000, MIB), (0, MIB - 5120)]
    ledger.remove_pod("uid-a")
    assert free(ledger) == [(1000, MIB), (400, MIB - 1024)]


def test_a_share_of_memory_alone_is_a_whole_gpu_where_no_plugin_shares() -> None:
    ledger = ledger_of(n=2)
    ledger.upsert_pod(sharing_pod("a", "0", "0", "1024"), 0.0)
    assert free(ledger) == [(0, 0), (1000, MIB)]


def test_booked_over_capacity_is_never_negative_and_counted() -> None:
    ledger = ledger_of(n=1)
    for name in ("a", "b", "c"):
        ledger.upsert_pod(sharing_pod(name, "0", "500", "9000"), 0.0)
    assert free(ledger) == [(0, 0)]
    assert ledger.rows.num_crowded == 1
    ledger.remove_pod("uid-c")
    assert free(ledger) == [(0, 0)], "2 x 9000 MiB are still more than 15360"
    ledger.remove_pod("uid-b")
    assert free(ledger) == [(500, MIB - 9000)]
    assert ledger.rows.num_crowded == 0


def test_a_whole_gpu_where_somebody_has_a_share_counts_by_number() -> None:
    ledger = ledger_of(n=3)
    ledger.upsert_pod(pod_object("whole", 1, node="n", assigned="0"), 0.0)
    ledger.upsert_pod(sharing_pod("share", "0"), 0.0)
    assert free(ledger) == [(500, MIB - 4096), (1000, MIB), (1000, MIB)]
    assert (untracked(ledger), ledger.rows.num_crowded) == (1, 1)


def test_where_more_are_held_by_number_than_are_idle_shared_gpus_may_be_theirs() -> None:
    ledger = ledger_of(n=2)
    ledger.upsert_pod(sharing_pod("share", "0"), 0.0)
    ledger.upsert_pod(pod_object("theirs", 1, node="n"), 0.0)
    assert free(ledger) == [(500, MIB - 4096), (1000, MIB)]
    ledger.upsert_pod(pod_object("theirs-too", 1, node="n"), 0.0)
    assert free(ledger) == [(0, 0), (1000, MIB)]
    assert untracked(ledger) == 2


def annotated_node(*uuids: str, healthy: bool = True) -> objects.Node:
    manifest = node_manifest("n", len(uuids))
    gpus = [{"index": index, "uuid": uuid, "memory_mib": MIB} for index, uuid in enumerate(uuids)]
    gpus[-1]["healthy"] = healthy
    manifest["metadata"]["annotations"] = {GPUS: json.dumps(gpus)}
    return msgspec.convert(manifest, objects.Node)


def test_a_uuid_is_believed_rather_than_an_index() -> None:
    ledger = ledger_of()
    ledger.upsert_node(annotated_node("GPU-a", "GPU-b"))
    ledger.upsert_pod(sharing_pod("share", "1", **{ASSIGNED_UUIDS: "GPU-a"}), 0.0)
    assert free(ledger) == [(500, MIB - 4096), (1000, MIB)]
    ledger.upsert_node(annotated_node("GPU-b", "GPU-a"))
    assert free(ledger) == [(1000, MIB), (500, MIB - 4096)]
    ledger.upsert_node(annotated_node("GPU-b", "GPU-c"))
    assert (free(ledger), untracked(ledger)) == ([(1000, MIB), (1000, MIB)], 1)


def test_a_broken_gpu_has_nothing_free() -> None:
    ledger = ledger_of()
    ledger.upsert_node(annotated_node("GPU-a", "GPU-b", healthy=False))
    assert free(ledger) == [(1000, MIB), (0, 0)]
    assert untracked(ledger) == 0


def test_mig_devices_are_held_by_profile() -> None:
    ledger = Ledger(reservation_ttl_s=30.0)
    ledger.upsert_node(node_object("n", 7, resource="nvidia.com/mig-1g.5gb"))
    placer = Placer(ledger, default_policy="bestfit", clock=Clock(), wall_clock=Clock())

    def place(name: str) -> str | None:
        request = read_pod_request(pod_object(name, 3, resource="nvidia.com/mig-1g.5gb")).gpus
        assert request is not None
        placement = placer.place(PodIdentity("default", name, f"uid-{name}"), request, POLICIES["bestfit"], ["n"])
        placer.reserve(placement)
        return placement.node

    assert [place(name) for name in ("a", "b", "c")] == ["n", "n", None]
    ledger.upsert_pod(pod_object("a", 3, resource="nvidia.com/mig-1g.5gb", node="n"), 0.0)
    assert ledger.snapshot(0.0).mig_free.tolist() == [[1]]
    assert place("c") is None
    ledger.remove_pod("uid-a")
    assert place("c") == "n"


# What a pod says that it holds.


def unserved(units: int, *parts: Part) -> Holding:
    """What a pod holds that asks by annotation alone."""
    return Holding(units, parts, unserved=True)


@pytest.mark.parametrize(
    ("pod", "holding", "fault"),
    [
        pytest.param(sharing_pod("p", "2"), unserved(1, Part(2, 500, 4096)), "", id="a share"),
        pytest.param(sharing_pod("p", "2", "0"), unserved(1, Part(2, 0, 4096)), "", id="a share of memory"),
        pytest.param(
            sharing_pod("p", "2", **{ASSIGNED_UUIDS: "GPU-x"}),
            unserved(1, Part(2, 500, 4096, "GPU-x")),
            "",
            id="UUID",
        ),
        pytest.param(
            sharing_pod("p", "2", **{ASSIGNED_UUIDS: "GPU-x,GPU-y"}),
            unserved(1, Part(2, 500, 4096)),
            "",
            id="not as many UUIDs",
        ),
        pytest.param(
            sharing_pod("p", "0,1", **{COUNT: "2"}),
            unserved(2, Part(0, 500, 4096), Part(1, 500, 4096)),
            "",
            id="two",
        ),
        pytest.param(
            sharing_pod("p", "2", **{ASSIGNED_SHARE: "1", ASSIGNED_MEMORY: "1"}),
            unserved(1, Part(2, 500, 4096)),
            "",
            id="made smaller later: what was asked is held",
        ),
        pytest.param(
            sharing_pod("p", "2", "0", **{ASSIGNED_SHARE: "1"}),
            unserved(1, Part(2)),
            ASSIGNED_SHARE,
            id="compute that nobody asked for: all of it",
        ),
        pytest.param(
            sharing_pod("p", "2", **{ASSIGNED_SHARE: "half"}),
            unserved(1, Part(2)),
            ASSIGNED_SHARE,
            id="garbage: all of it",
        ),
        pytest.param(
            sharing_pod("p", "2", **{ASSIGNED_MEMORY: "9" * 400}),
            unserved(1, Part(2)),
            ASSIGNED_MEMORY,
            id="huge: all",
        ),
        pytest.param(sharing_pod("p", "two"), unserved(1), ASSIGNED_GPUS, id="garbage indices: any GPU"),
        pytest.param(sharing_pod("p", "1,2"), unserved(1), ASSIGNED_GPUS, id="more indices than shares"),
        pytest.param(sharing_pod("p", ""), unserved(1), "", id="bound by somebody else: any GPU"),
        pytest.param(
            pod_object("p", 1, node="n", annotations={ASSIGNED_GPUS: "2", ASSIGNED_SHARE: "1"}),
            whole_gpus(1, [2]),
            "",
            id="a share that nobody asked for is a whole GPU",
        ),
        pytest.param(
            pod_object("p", node="n", annotations={SHARE: "0", ASSIGNED_GPUS: "2", ASSIGNED_SHARE: "1"}),
            whole_gpus(1, [2]),
            SHARE,
            id="a request that can't be read: all of it",
        ),
    ],
)
def test_holding(pod: objects.Pod, holding: Holding, fault: str) -> None:
    held, told = read_holding(pod)
    assert held == holding
    assert fault in told
    assert bool(fault) == bool(told)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                ASSIGNED_GPUS,
                ASSIGNED_SHARE,
                ASSIGNED_MEMORY,
                ASSIGNED_UUIDS,
                SHARE,
                MEMORY_EACH,
                COUNT,
                "kerf.dev/gpu-uuid",
            ]
        ),
        st.text(max_size=6) | st.sampled_from(["0", "1", "500", "0,1", "9" * 5000, "\x00", "１"]),
    ),
    st.sampled_from([0, 1, 2, "x"]),
)
def test_no_annotation_breaks_the_ledger_or_frees_what_is_held(annotations: dict[str, str], gpus: int | str) -> None:
    ledger = ledger_of(n=2)
    pod = pod_object("p", gpus, node="n", annotations=annotations)
    warnings = ledger.upsert_pod(pod, 0.0)
    assert ledger.num_unreadable == len(warnings)
    before = free(ledger)
    assert all(0 <= milli <= 1000 and 0 <= mib <= MIB for milli, mib in before)
    if gpus:
        assert before != [(1000, MIB)] * 2 or untracked(ledger) > 0


# Decisions and what is read back.


def snapshot_lists(cluster: Cluster) -> list[Any]:
    names = ("gpu_free_milli", "gpu_free_mib", "untracked_units", "gpu_idle")
    return [getattr(cluster, name).tolist() for name in names]


REQUESTS = st.sampled_from(
    [
        {SHARE: "500"},
        {SHARE: "300", MEMORY_EACH: "4Gi"},
        {SHARE: "999", MEMORY_EACH: "1Gi"},
        {COUNT: "1"},
        {MEMORY_EACH: "8Gi"},
        {SHARE: "400", COUNT: "2"},
    ]
)


@given(st.lists(st.tuples(REQUESTS, st.sampled_from(sorted(POLICIES))), max_size=14), st.integers(0, 2))
def test_shares_never_exceed_a_gpu_and_survive_a_restart(
    asked: list[tuple[dict[str, str], str]], num_foreign: int
) -> None:
    ledger, reread = ledger_of(n=2, m=2), ledger_of(n=2, m=2)
    placer = Placer(ledger, default_policy="bestfit", clock=Clock(), wall_clock=Clock())
    booked: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for number in range(num_foreign):
        foreign = pod_object(f"f{number}", 1, node="n")
        ledger.upsert_pod(foreign, 0.0)
        reread.upsert_pod(foreign, 0.0)
    for number, (annotations, policy) in enumerate(asked):
        uid = f"uid-p{number}"
        request = read_pod_request(pod_object("p", annotations=annotations)).gpus
        assert request is not None
        placement = placer.place(PodIdentity("default", "p", uid), request, POLICIES[policy], ["m", "n"])
        placer.reserve(placement)
        assignment = placement.assignment()
        if assignment is None:
            continue
        for gpu in assignment.gpus:
            mib = assignment.mib if assignment.shared else MIB
            booked.setdefault((assignment.node, gpu), []).append((assignment.milli, mib))
        written = {ASSIGNED_GPUS: ",".join(map(str, assignment.gpus))}
        if assignment.shared:
            written |= {ASSIGNED_SHARE: str(assignment.milli), ASSIGNED_MEMORY: str(assignment.mib)}
        bound = pod_manifest(f"p{number}", node=assignment.node, annotations=annotations | written)
        reread.upsert_pod(msgspec.convert(bound, objects.Pod), 0.0)
    for parts in booked.values():
        assert sum(milli for milli, _ in parts) <= 1000
        assert sum(mib for _, mib in parts) <= MIB
        assert len(parts) == 1 or all(milli < 1000 for milli, _ in parts)
    used_on_n = {gpu for node, gpu in booked if node == "n"}
    assert len(used_on_n) <= 2 - num_foreign
    assert snapshot_lists(reread.snapshot(0.0)) == snapshot_lists(ledger.snapshot(0.0))


def test_a_request_by_memory_is_whole_here_and_kept_so() -> None:
    ledger = ledger_of(n=1)
    placer = Placer(ledger, default_policy="bestfit", clock=Clock(), wall_clock=Clock())
    placement = placer.place(
        PodIdentity("default", "p", "u"), GpuRequest(1, memory_each_mib=1024), POLICIES["bestfit"], ["n"]
    )
    assignment = placement.assignment()
    assert assignment is not None
    assert not assignment.shared
    assert assignment.holding == whole_gpus(1, [0])


# CPU and main memory.


def test_cpu_and_memory_free_are_what_the_pods_leave() -> None:
    ledger = ledger_of()
    manifest = node_manifest("n", 1)
    manifest["status"]["allocatable"] |= {"cpu": "8", "memory": "32Gi"}
    ledger.upsert_node(msgspec.convert(manifest, objects.Node))

    def with_requests(cpu: str, memory: str) -> objects.Pod:
        pod = pod_object("p", node="n")
        assert pod.spec.containers
        pod.spec.containers[0].resources = objects.Resources(requests={"cpu": cpu, "memory": memory})
        return pod

    def compute() -> tuple[int, int]:
        cluster = ledger.snapshot(0.0)
        return int(cluster.cpu_free_milli[0]), int(cluster.memory_free_mib[0])

    ledger.upsert_pod(with_requests("1500m", "4Gi"), 0.0)
    assert compute() == (6500, 28 * 1024)
    ledger.upsert_pod(with_requests("9", "40Gi"), 0.0)
    assert compute() == (-1000, -8 * 1024)
    ledger.remove_pod("uid-p")
    assert compute() == (8000, 32 * 1024)


@pytest.mark.parametrize(
    ("spec", "compute"),
    [
        pytest.param({}, (0, 0), id="nothing"),
        pytest.param({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, (2000, 0), id="a limit alone"),
        pytest.param(
            {"containers": [{"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}]}, (1000, 0), id="both"
        ),
        pytest.param(
            {
                "containers": [{"resources": {"requests": {"cpu": "1", "memory": "1Mi"}}}],
                "initContainers": [
                    {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
                    {"resources": {"requests": {"cpu": "3", "memory": "500Ki"}}},
                ],
                "overhead": {"cpu": "250m"},
            },
            (4250, 1),
            id="max(1 + 1, 1 + 3) + 0.25",
        ),
        pytest.param({"containers": [{"resources": {"requests": {"cpu": "x", "memory": "-1"}}}]}, (0, 0), id="garbage"),
    ],
)
def test_compute(spec: dict[str, Any], compute: tuple[int, int]) -> None:
    assert read_compute(msgspec.convert({"spec": spec}, objects.Pod).spec) == compute
