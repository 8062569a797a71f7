"""Parts of GPUs in the ledger: what is booked on each, by whom, and what that leaves."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from extender.core.annotations import COUNT, MEMORY_EACH, SHARE, UUID
from extender.core.policies.registry import POLICIES
from extender.core.resources.requests import GpuRequest
from extender.kube import objects
from extender.plugins.holdings import Holding, Part, whole_gpus
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_MEMORY, ASSIGNED_SHARE, ASSIGNED_UUIDS
from extender.plugins.pod_resources import read_compute
from extender.plugins.pods import read_holding, read_pod_request
from extender.scheduling.placer import Placer, PodIdentity
from tests.ledger.builders import T4_MIB, Clock, described_node, free, ledger_of, node_object, pod_object, untracked

FREE = (1000, T4_MIB)


def sharing_pod(name: str, gpus: str, milli: str = "500", mib: str = "4096", **annotations: str) -> objects.Pod:
    """A pod bound to node n that asks for what it was given."""
    asked = {SHARE: milli, MEMORY_EACH: mib} if milli != "0" else {MEMORY_EACH: mib}
    assigned = {ASSIGNED_GPUS: gpus, ASSIGNED_SHARE: milli, ASSIGNED_MEMORY: mib}
    return pod_object(name, node="n", annotations=asked | assigned | annotations)


def test_booked_over_capacity_is_never_negative_and_counted() -> None:
    ledger = ledger_of(n=2)
    for name in ("a", "b", "c"):
        ledger.upsert_pod(sharing_pod(name, "0", "500", "9000"), 0.0)
    assert (free(ledger), ledger.rows.num_overbooked) == ([(0, 0), FREE], 1)
    ledger.remove_pod("uid-c")
    assert free(ledger) == [(0, 0), FREE], "2 x 9000 MiB are still more than 15360"
    ledger.remove_pod("uid-b")
    assert (free(ledger), ledger.rows.num_overbooked) == ([(500, T4_MIB - 9000), FREE], 0)


def test_a_whole_gpu_where_another_pod_has_a_share_counts_by_number() -> None:
    ledger = ledger_of(n=3)
    ledger.upsert_pod(pod_object("whole", 1, node="n", assigned="0"), 0.0)
    ledger.upsert_pod(sharing_pod("share", "0"), 0.0)
    assert free(ledger) == [(500, T4_MIB - 4096), FREE, FREE]
    assert (untracked(ledger), ledger.rows.num_overbooked) == (1, 1)


def test_a_uuid_is_believed_rather_than_an_index() -> None:
    ledger = ledger_of(described_node("GPU-a", "GPU-b"))
    ledger.upsert_pod(sharing_pod("share", "1", **{ASSIGNED_UUIDS: "GPU-a"}), 0.0)
    part = 500, T4_MIB - 4096
    assert free(ledger) == [part, FREE]
    ledger.upsert_node(described_node("GPU-b", "GPU-a"))
    assert free(ledger) == [FREE, part]
    ledger.upsert_node(described_node("GPU-b", "GPU-c"))
    assert (free(ledger), untracked(ledger)) == ([FREE, FREE], 1)


def test_a_broken_gpu_has_nothing_free() -> None:
    ledger = ledger_of(described_node("GPU-a", "GPU-b", broken=["GPU-b"]))
    assert (free(ledger), untracked(ledger)) == ([FREE, (0, 0)], 0)


def test_mig_devices_are_held_by_profile() -> None:
    profile = "nvidia.com/mig-1g.5gb"
    ledger = ledger_of(node_object("n", 7, resource=profile))
    placer = Placer(ledger, default_policy="bestfit", clock=Clock(), wall_clock=Clock())

    def place(name: str) -> str | None:
        request = read_pod_request(pod_object(name, 3, resource=profile)).gpus
        assert request is not None
        placement = placer.place(PodIdentity("default", name, f"uid-{name}"), request, POLICIES["bestfit"], ["n"])
        placer.reserve(placement)
        return placement.node

    assert [place(name) for name in ("a", "b", "c")] == ["n", "n", None]
    ledger.upsert_pod(pod_object("a", 3, resource=profile, node="n"), 0.0)
    assert ledger.snapshot(0.0).mig_free.tolist() == [[1]]
    assert place("c") is None
    ledger.remove_pod("uid-a")
    assert place("c") == "n"


def test_a_request_by_memory_is_whole_where_no_plugin_shares_and_kept_so() -> None:
    placer = Placer(ledger_of(n=1), default_policy="bestfit", clock=Clock(), wall_clock=Clock())
    request = GpuRequest(1, memory_each_mib=1024)
    assignment = placer.place(PodIdentity("default", "p", "u"), request, POLICIES["bestfit"], ["n"]).assignment()
    assert assignment is not None
    assert (assignment.shared, assignment.holding) == (False, whole_gpus(1, [0]))


# What a pod says that it holds.


def test_holding() -> None:
    def unserved(units: int, *parts: Part) -> Holding:
        return Holding(units, parts, unserved=True)

    half = unserved(1, Part(2, 500, 4096))
    for pod, holding, fault in (
        (sharing_pod("p", "2"), half, ""),
        (sharing_pod("p", "2", "0"), unserved(1, Part(2, 0, 4096)), ""),
        (sharing_pod("p", "2", **{ASSIGNED_UUIDS: "GPU-x"}), unserved(1, Part(2, 500, 4096, "GPU-x")), ""),
        (sharing_pod("p", "2", **{ASSIGNED_UUIDS: "GPU-x,GPU-y"}), half, ""),
        (sharing_pod("p", "0,1", **{COUNT: "2"}), unserved(2, Part(0, 500, 4096), Part(1, 500, 4096)), ""),
        # At least what was asked is held, and what can't be read is all of it.
        (sharing_pod("p", "2", **{ASSIGNED_SHARE: "1", ASSIGNED_MEMORY: "1"}), half, ""),
        (sharing_pod("p", "2", "0", **{ASSIGNED_SHARE: "1"}), unserved(1, Part(2)), ASSIGNED_SHARE),
        (sharing_pod("p", "2", **{ASSIGNED_SHARE: "half"}), unserved(1, Part(2)), ASSIGNED_SHARE),
        (sharing_pod("p", "2", **{ASSIGNED_MEMORY: "9" * 400}), unserved(1, Part(2)), ASSIGNED_MEMORY),
        (sharing_pod("p", "two"), unserved(1), ASSIGNED_GPUS),
        (sharing_pod("p", "1,2"), unserved(1), ASSIGNED_GPUS),
        (sharing_pod("p", ""), unserved(1), ""),
        # Nobody asked for a share.
        (pod_object("p", 1, node="n", assigned="2", annotations={ASSIGNED_SHARE: "1"}), whole_gpus(1, [2]), ""),
        (pod_object("p", node="n", assigned="2", annotations={SHARE: "0"}), whole_gpus(1, [2]), SHARE),
    ):
        held, told = read_holding(pod)
        assert held == holding
        assert (fault in told, bool(told)) == (True, bool(fault))


@given(
    st.dictionaries(
        st.sampled_from(
            [ASSIGNED_GPUS, ASSIGNED_SHARE, ASSIGNED_MEMORY, ASSIGNED_UUIDS, SHARE, MEMORY_EACH, COUNT, UUID]
        ),
        st.text(max_size=6) | st.sampled_from(["0", "1", "500", "0,1", "9" * 5000, "\x00", "１"]),
    ),
    st.sampled_from([0, 1, 2, "x"]),
)
def test_no_annotation_breaks_the_ledger_or_frees_what_is_held(annotations: dict[str, str], gpus: int | str) -> None:
    ledger = ledger_of(n=2)
    warnings = ledger.upsert_pod(pod_object("p", gpus, node="n", annotations=annotations), 0.0)
    assert ledger.num_unreadable == len(warnings)
    assert all(0 <= milli <= 1000 and 0 <= mib <= T4_MIB for milli, mib in free(ledger))
    if gpus:
        assert free(ledger) != [FREE] * 2 or untracked(ledger) > 0


def test_compute() -> None:
    def of(**resources: dict[str, str]) -> dict[str, Any]:
        return {"resources": resources}

    sidecar = {"restartPolicy": "Always", **of(requests={"cpu": "1"})}
    init = of(requests={"cpu": "3", "memory": "500Ki"})
    spec: dict[str, Any]
    for spec, compute in (
        ({}, (0, 0)),
        ({"containers": [of(limits={"cpu": "2"})]}, (2000, 0)),
        ({"containers": [of(limits={"cpu": "2"}, requests={"cpu": "1"})]}, (1000, 0)),
        # max(1 + 1, 1 + 3) + 0.25
        (
            {
                "containers": [of(requests={"cpu": "1", "memory": "1Mi"})],
                "initContainers": [sidecar, init],
                "overhead": {"cpu": "250m"},
            },
            (4250, 1),
        ),
        ({"containers": [of(requests={"cpu": "x", "memory": "-1"})]}, (0, 0)),
    ):
        assert read_compute(msgspec.convert({"spec": spec}, objects.Pod).spec) == compute
