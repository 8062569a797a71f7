from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster.contracts import hami, hami_nodes
from extender.cluster.contracts.formats import MAX_CHARS, Ask, AssignedGpu, ContainerResources, PodShares
from extender.core.requests import RequestError
from tests.cluster.contracts.goldens import case_name, cases, containers_of, golden


def assigned(case: Any) -> list[AssignedGpu]:
    """The GPUs that a pod of the golden file gets."""
    given = case.get("given", (1000, 0))
    return [
        AssignedGpu(**golden("hami-bindings")["gpus"][index], given_milli=given[0], given_mib=given[1])
        for index in case["gpus"]
    ]


@pytest.mark.parametrize("case", cases("hami-registers"), ids=case_name)
def test_register(case: Any) -> None:
    register = hami_nodes.read_register(case["annotations"], case["allocatable"])

    if case["gpus"] is None:
        assert register is None
    else:
        assert register is not None
        assert msgspec.to_builtins(register.gpus) == tuple(case["gpus"])
        assert len(register.warnings) == case["num_warnings"]


@pytest.mark.parametrize("case", cases("hami-asks"), ids=case_name)
def test_ask(case: Any) -> None:
    if "error" in case:
        with pytest.raises(RequestError, match=case["error"]):
            hami.read_ask(containers_of(case))
    else:
        assert hami.read_ask(containers_of(case)) == (case["ask"] and Ask(**case["ask"]))


@pytest.mark.parametrize("case", cases("hami-pods"), ids=case_name)
def test_shares_of_a_bound_pod(case: Any) -> None:
    held = hami.read_shares(case["annotations"], golden("hami-pods")["node"], containers_of(case))

    if case["shares"] is None:
        assert held is None
    else:
        assert held is not None
        found = [{"uuid": s.uuid, "milli": s.milli, "memory_mib": s.memory_mib} for s in held.shares]
        assert found == case["shares"]
        assert held.unknown == case.get("unknown", 0)
        assert len(held.warnings) == case.get("num_warnings", 0)


@pytest.mark.parametrize("case", cases("hami-bindings"), ids=case_name)
def test_annotations_written_with_the_binding(case: Any) -> None:
    file = golden("hami-bindings")
    gpus = assigned(case)

    written = hami.binding_annotations(
        containers_of(case), gpus, file["node"], file["unix_time"], init_slots=case.get("init_slots", True)
    )

    if "annotations" in case:
        assert written == case["annotations"]
    else:
        assert written[hami.TO_ALLOCATE] == written[hami.ALLOCATED] == case["devices"]


@pytest.mark.parametrize("case", cases("hami-bindings"), ids=case_name)
def test_what_is_written_is_read_back_as_what_was_asked(case: Any) -> None:
    file = golden("hami-bindings")
    gpus = assigned(case)
    containers = containers_of(case)
    ask = hami.read_ask(containers) or Ask(len(gpus), whole=True)

    held = hami.read_shares(
        hami.binding_annotations(containers, gpus, file["node"], file["unix_time"]), file["node"], containers
    )

    assert held is not None
    assert not held.unknown
    assert {share.uuid for share in held.shares} == {gpu.uuid for gpu in gpus}
    for share, gpu in zip(held.shares, gpus, strict=True):
        if not ask.whole:
            assert share.milli == ask.milli
            assert share.memory_mib == (ask.memory_each_mib or gpu.memory_mib * ask.memory_each_percent // 100)
        else:
            assert share.milli == gpu.given_milli


@pytest.mark.parametrize("case", cases("hami-locks"), ids=case_name)
def test_lock(case: Any) -> None:
    lock = hami_nodes.read_lock({} if case["lock"] is None else {hami_nodes.NODE_LOCK: case["lock"]})

    if case["lock"] is None:
        assert lock is None
    else:
        assert lock == hami_nodes.NodeLock(case["locked_at"], case["namespace"], case["pod"])


def test_a_lock_is_read_back_as_it_was_written() -> None:
    text = hami_nodes.format_lock("ns", "pod-a", 1785564000.9)

    assert text == "2026-08-01T06:00:00Z,ns,pod-a"
    lock = hami_nodes.read_lock({hami_nodes.NODE_LOCK: text})
    assert lock is not None
    assert lock.is_of("ns", "pod-a")
    assert not lock.is_of("ns", "pod-b")
    assert not lock.expired(1785564000.0 + 300)
    assert lock.expired(1785564000.0 + 301)


@pytest.mark.parametrize(
    ("types", "pattern"),
    [
        ("A100", "A100"),
        ("Tesla V100-PCIE-32GB, H100", "Tesla[ -]V100[ -]PCIE[ -]32GB|H100"),
        (" , ", ""),
        ("A.100", r"A\.100"),
    ],
)
def test_lists_of_types_become_patterns(types: str, pattern: str) -> None:
    assert hami.type_pattern(types) == pattern


def test_lists_of_uuids() -> None:
    assert hami.uuids(" GPU-b,GPU-a,, GPU-b") == ("GPU-a", "GPU-b")
    assert hami.uuids(" ") == ()


def test_a_huge_annotation_is_not_looked_at() -> None:
    huge = "GPU-a,NVIDIA,1,0:" * MAX_CHARS

    register = hami_nodes.read_register({hami_nodes.REGISTER: huge}, {"nvidia.com/gpu": "1"})
    held = hami.read_shares({hami.ALLOCATED: huge}, "n1", [])

    assert register is not None
    assert not register.gpus
    assert len(register.warnings) == 1
    assert held is not None
    assert held.unknown == 1


@given(st.text() | st.text(alphabet="GPU-a,;:0123[]{}\"'\x00", max_size=200))
def test_any_text_is_read_conservatively(text: str) -> None:
    containers = [ContainerResources({"nvidia.com/gpu": "2"})]

    held = hami.read_shares({hami.ALLOCATED: text}, "n1", containers)
    register = hami_nodes.read_register({hami_nodes.REGISTER: text}, {"nvidia.com/gpu": "2"})
    hami_nodes.read_lock({hami_nodes.NODE_LOCK: text})

    assert held is None or isinstance(held, PodShares)
    assert held is None or all(share.milli >= 0 and share.memory_mib >= 0 for share in held.shares)
    assert register is not None
    assert all(gpu.memory_mib > 0 and gpu.uuid for gpu in register.gpus)
    assert register.gpus or register.warnings
