"""gpushare's formats, against values of its own code."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest, RequestError
from extender.plugins.formats import ContainerResources
from extender.plugins.holdings import Holding, Part
from extender.plugins.nvidia import gpushare
from extender.plugins.nvidia.gpushare import (
    _binding_annotations,
    _read_holding,
    _read_register,
    _read_request,
    _requested_units,
)
from extender.plugins.protocol import UnreadableError
from tests.plugins.goldens import cases, containers_of


def test_nodes() -> None:
    for name, case in cases("gpushare", "nodes"):
        if case["memory_mib"] == []:
            with pytest.raises(UnreadableError):
                _read_register(case["capacity"], case["allocatable"])
            continue
        offer = _read_register(case["capacity"], case["allocatable"])
        assert (offer and [gpu.memory_mib for gpu in offer.gpus]) == case["memory_mib"], name
        if offer is not None:
            assert offer.unit is GpuUnit.PART
            assert offer.withheld_units == case.get("withheld", 0), name
            assert len(offer.warnings) == case.get("num_warnings", 0), name


def test_requests() -> None:
    for name, case in cases("gpushare", "asks"):
        units, requested = _requested_units(containers_of(case)), case["memory_each_mib"]
        assert bool(units) == (requested is not None), name
        assert not units or _read_request(units) == GpuRequest(1, AskedUnit.PART, requested), name
    with pytest.raises(RequestError, match=r"aliyun\.com/gpu-mem"):
        _requested_units([ContainerResources({"aliyun.com/gpu-mem": "three"})])


def test_shares_of_a_bound_pod() -> None:
    for name, case in cases("gpushare", "pods"):
        if case.get("unknown"):
            with pytest.raises(UnreadableError):
                _read_holding(case["annotations"], case["asked"])
            continue
        share = case.get("share")
        held = Holding(1, (Part(share["index"], 0, share["memory_mib"]),)) if share else None
        assert _read_holding(case["annotations"], case["asked"]) == held, name


def test_annotations_of_a_binding() -> None:
    for name, case in cases("gpushare", "bindings"):
        containers = containers_of(case)
        written = _binding_annotations(containers, case["index"], case["gpu_memory_mib"], case["unix_time_ns"])
        assert written == case["annotations"], name
    written = _binding_annotations([ContainerResources({"aliyun.com/gpu-mem": "3"})], 1, 15360, 17)
    assert _read_holding(written, 3) == Holding(1, (Part(1, 0, 3072),))


@given(st.text(), st.text())
def test_any_text_is_read_conservatively(index: str, memory: str) -> None:
    with contextlib.suppress(UnreadableError):
        held = _read_holding({gpushare.INDEX: index, gpushare.POD_MEMORY: memory}, 3)
        assert held is not None
        assert all(part.gpu >= 0 and part.mib >= 3 * 1024 for part in held.parts)
