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
from tests.plugins.goldens import case_name, cases, containers_of, golden


def assigned(case: Any) -> list[AssignedGpu]:
    """The GPUs that a pod of the golden file gets."""
    given = case.get("given", (1000, 0))
    return [
        AssignedGpu(**golden("hami-bindings")["gpus"][index], given_milli=given[0], given_mib=given[1])
        for index in case["gpus"]
    ]


def registered(gpu: Any) -> Any:
    """A GPU of the golden file in Kerf's terms."""
    of_plugin = {key: gpu[key] for key in ("memory_mib", "uuid", "healthy", "numa", "max_holders")}
    model = describe_model(gpu["product"], {}) if gpu["product"] else UNKNOWN_MODEL
    return msgspec.to_builtins(Gpu(model, **of_plugin))


@pytest.mark.parametrize("case", cases("hami-registers"), ids=case_name)
def test_register(case: Any) -> None:
    if not case["gpus"] and case["gpus"] is not None:
        with pytest.raises(UnreadableError):
            _read_register(case["annotations"], case["allocatable"], NodeReading())
        return
    offer = _read_register(case["annotations"], case["allocatable"], NodeReading())

    if case["gpus"] is None:
        assert offer is None
    else:
        assert offer is not None
        gpus = {gpu["index"]: gpu for gpu in case["gpus"]}
        assert len(offer.gpus) == max(gpus) + 1
        for index, gpu in enumerate(offer.gpus):
            assert msgspec.to_builtins(gpu) == registered(gpus[index]) if index in gpus else not gpu.healthy
        assert len(offer.warnings) == case["num_warnings"]


def asked(count: int, *, whole: bool = False, memory_each_mib: int = 0, **more: int) -> GpuRequest:
    """An ask of the golden file in Kerf's terms."""
    total = count * memory_each_mib if whole else 0
    return GpuRequest(count, AskedUnit.PART, memory_each_mib, total, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", cases("hami-asks"), ids=case_name)
def test_ask(case: Any) -> None:
    if "error" in case:
        with pytest.raises(RequestError, match=case["error"]):
            _read_request(containers_of(case))
    else:
        assert _read_request(containers_of(case), case.get("policy", "")) == (case["ask"] and asked(**case["ask"]))


@pytest.mark.parametrize("case", cases("hami-pods"), ids=case_name)
def test_shares_of_a_bound_pod(case: Any) -> None:
    if case.get("unknown"):
        with pytest.raises(UnreadableError):
            _read_holding(case["annotations"], golden("hami-pods")["node"], containers_of(case))
        return
    held = _read_holding(case["annotations"], golden("hami-pods")["node"], containers_of(case))

    found = [{"uuid": part.uuid, "milli": part.milli, "memory_mib": part.mib} for part in held.parts] if held else None
    assert found == (case["shares"] or None)


@pytest.mark.parametrize("case", cases("hami-bindings"), ids=case_name)
def test_annotations_written_with_the_binding(case: Any) -> None:
    file = golden("hami-bindings")
    gpus = assigned(case)

    written = _bound_annotations(
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
    ask = _read_request(containers)

    held = _read_holding(
        _bound_annotations(containers, gpus, file["node"], file["unix_time"]), file["node"], containers
    )

    assert held is not None
    assert {part.uuid for part in held.parts} == {gpu.uuid for gpu in gpus}
    for part, gpu in zip(held.parts, gpus, strict=True):
        if ask is not None and (ask.milli or ask.shares_by_memory):
            assert part.milli == ask.milli
            assert part.mib == (ask.memory_each_mib or gpu.memory_mib * ask.memory_each_percent // 100)
        else:
            assert part.milli == gpu.given_milli


@pytest.mark.parametrize("case", cases("hami-locks"), ids=case_name)
def test_lock(case: Any) -> None:
    lock = _read_lock({} if case["lock"] is None else {hami.NODE_LOCK: case["lock"]})

    if case["lock"] is None:
        assert lock is None
    else:
        assert lock == _NodeLock(case["locked_at"], case["namespace"], case["pod"])


def test_a_lock_is_read_back_as_it_was_written() -> None:
    text = _format_lock("ns", "pod-a", 1785564000.9)

    assert text == "2026-08-01T06:00:00Z,ns,pod-a"
    lock = _read_lock({hami.NODE_LOCK: text})
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
    assert _type_pattern(types) == pattern


def test_lists_of_uuids() -> None:
    assert _uuids(" GPU-b,GPU-a,, GPU-b") == ("GPU-a", "GPU-b")
    assert _uuids(" ") == ()


def test_a_huge_annotation_is_not_looked_at() -> None:
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
