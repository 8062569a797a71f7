"""HAMi's formats, against values of its own code."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.resources.gpu_models import UNKNOWN_MODEL, describe_model
from extender.core.resources.nodes import Gpu, NodeReading
from extender.core.resources.requests import AskedUnit, GpuRequest, RequestError
from extender.plugins.formats import _MAX_CHARS, ContainerResources
from extender.plugins.holdings import Holding
from extender.plugins.nvidia import hami
from extender.plugins.nvidia.hami import (
    _bound_annotations,
    _format_lock,
    _NodeLock,
    _read_holding,
    _read_lock,
    _read_register,
    _read_request,
    _type_pattern,
    _uuids,
)
from extender.plugins.protocol import AssignedGpu, UnreadableError
from tests.plugins.goldens import cases, containers_of, golden


def assigned(case: Any) -> list[AssignedGpu]:
    """The GPUs that a pod of the golden file gets."""
    milli, mib = case.get("given", (1000, 0))
    gpus = golden("hami-bindings")["gpus"]
    return [AssignedGpu(**gpus[index], given_milli=milli, given_mib=mib) for index in case["gpus"]]


def registered(gpu: Any) -> Any:
    """A GPU of the golden file as Kerf reads it."""
    of_plugin = {key: gpu[key] for key in ("memory_mib", "uuid", "healthy", "numa", "max_holders")}
    model = describe_model(gpu["product"], {}) if gpu["product"] else UNKNOWN_MODEL
    return msgspec.to_builtins(Gpu(model, **of_plugin))


def test_registers() -> None:
    for name, case in cases("hami-registers"):
        annotations, allocatable = case["annotations"], case["allocatable"]
        if case["gpus"] == []:
            with pytest.raises(UnreadableError):
                _read_register(annotations, allocatable, NodeReading())
            continue
        offer = _read_register(annotations, allocatable, NodeReading())
        assert (offer is None) == (case["gpus"] is None), name
        if offer is not None:
            gpus = {gpu["index"]: gpu for gpu in case["gpus"]}
            assert len(offer.gpus) == max(gpus) + 1, name
            for index, gpu in enumerate(offer.gpus):
                assert msgspec.to_builtins(gpu) == registered(gpus[index]) if index in gpus else not gpu.healthy, name
            assert len(offer.warnings) == case["num_warnings"], name


def requested(count: int, *, whole: bool = False, memory_each_mib: int = 0, **more: int) -> GpuRequest:
    """A request of the golden file as Kerf reads it."""
    total = count * memory_each_mib if whole else 0
    return GpuRequest(count, AskedUnit.PART, memory_each_mib, total, **more)  # type: ignore[arg-type]


def test_requests() -> None:
    for name, case in cases("hami-asks"):
        if "error" in case:
            with pytest.raises(RequestError, match=case["error"]):
                _read_request(containers_of(case))
        else:
            request = _read_request(containers_of(case), case.get("policy", ""))
            assert request == (case["ask"] and requested(**case["ask"])), name


def test_shares_of_a_bound_pod() -> None:
    node = golden("hami-pods")["node"]
    for name, case in cases("hami-pods"):
        if case.get("unknown"):
            with pytest.raises(UnreadableError):
                _read_holding(case["annotations"], node, containers_of(case))
            continue
        held = _read_holding(case["annotations"], node, containers_of(case))
        parts = held.parts if held else ()
        shares = [{"uuid": part.uuid, "milli": part.milli, "memory_mib": part.mib} for part in parts]
        assert shares == (case["shares"] or []), name


def test_annotations_of_a_binding() -> None:
    file = golden("hami-bindings")
    node, at = file["node"], file["unix_time"]
    for name, case in cases("hami-bindings"):
        containers, gpus = containers_of(case), assigned(case)
        written = _bound_annotations(containers, gpus, node, at, init_slots=case.get("init_slots", True))
        if "annotations" in case:
            assert written == case["annotations"], name
        else:
            assert written[hami.TO_ALLOCATE] == written[hami.ALLOCATED] == case["devices"], name
        request = _read_request(containers)
        held = _read_holding(_bound_annotations(containers, gpus, node, at), node, containers)
        assert held is not None
        assert {part.uuid for part in held.parts} == {gpu.uuid for gpu in gpus}, name
        for part, gpu in zip(held.parts, gpus, strict=True):
            if request is not None and (request.milli or request.shares_by_memory):
                mib = request.memory_each_mib or gpu.memory_mib * request.memory_each_percent // 100
                assert (part.milli, part.mib) == (request.milli, mib), name
            else:
                assert part.milli == gpu.given_milli, name


def test_locks() -> None:
    for name, case in cases("hami-locks"):
        lock = _read_lock({} if case["lock"] is None else {hami.NODE_LOCK: case["lock"]})
        expected = case["lock"] and _NodeLock(case["locked_at"], case["namespace"], case["pod"])
        assert lock == expected, name
    text = _format_lock("ns", "pod-a", 1785564000.9)
    assert text == "2026-08-01T06:00:00Z,ns,pod-a"
    lock = _read_lock({hami.NODE_LOCK: text})
    assert lock is not None
    assert (lock.is_of("ns", "pod-a"), lock.is_of("ns", "pod-b")) == (True, False)
    assert (lock.expired(1785564000.0 + 300), lock.expired(1785564000.0 + 301)) == (False, True)


def test_lists_of_types_and_uuids() -> None:
    for types, pattern in (
        ("A100", "A100"),
        ("Tesla V100-PCIE-32GB, H100", "Tesla[ -]V100[ -]PCIE[ -]32GB|H100"),
        (" , ", ""),
        ("A.100", r"A\.100"),
    ):
        assert _type_pattern(types) == pattern
    assert _uuids(" GPU-b,GPU-a,, GPU-b") == ("GPU-a", "GPU-b")
    assert _uuids(" ") == ()


def test_a_huge_annotation_is_not_parsed() -> None:
    huge = "GPU-a,NVIDIA,1,0:" * _MAX_CHARS
    with pytest.raises(UnreadableError, match="characters"):
        _read_register({hami.REGISTER: huge}, {"nvidia.com/gpu": "1"}, NodeReading())
    with pytest.raises(UnreadableError, match="characters"):
        _read_holding({hami.ALLOCATED: huge}, "n1", [])


@given(st.text() | st.text(alphabet="GPU-a,;:0123[]{}\"'\x00", max_size=200))
def test_any_text_is_read_conservatively(text: str) -> None:
    containers = [ContainerResources({"nvidia.com/gpu": "2"})]
    held: Holding | None = None
    with contextlib.suppress(UnreadableError):
        held = _read_holding({hami.ALLOCATED: text}, "n1", containers)
    with contextlib.suppress(UnreadableError):
        offer = _read_register({hami.REGISTER: text}, {"nvidia.com/gpu": "2"}, NodeReading())
        assert offer is not None
        assert any(gpu.memory_mib > 0 and gpu.uuid for gpu in offer.gpus)
    _read_lock({hami.NODE_LOCK: text})
    assert held is None or all(part.milli >= 0 and part.mib >= 0 for part in held.parts)
