import contextlib
from typing import Any

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
from tests.plugins.goldens import case_name, cases, containers_of


@pytest.mark.parametrize("case", cases("gpushare", "nodes"), ids=case_name)
def test_register(case: Any) -> None:
    if case["memory_mib"] == []:
        with pytest.raises(UnreadableError):
            _read_register(case["capacity"], case["allocatable"])
        return
    offer = _read_register(case["capacity"], case["allocatable"])

    if case["memory_mib"] is None:
        assert offer is None
    else:
        assert offer is not None
        assert offer.unit is GpuUnit.PART
        assert [gpu.memory_mib for gpu in offer.gpus] == case["memory_mib"]
        assert offer.withheld_units == case.get("withheld", 0)
        assert len(offer.warnings) == case.get("num_warnings", 0)


@pytest.mark.parametrize("case", cases("gpushare", "asks"), ids=case_name)
def test_ask(case: Any) -> None:
    units = _requested_units(containers_of(case))

    asked = case["memory_each_mib"]
    assert bool(units) == (asked is not None)
    assert not units or _read_request(units) == GpuRequest(1, AskedUnit.PART, asked)


def test_an_ask_that_is_no_number_is_refused() -> None:
    with pytest.raises(RequestError, match=r"aliyun\.com/gpu-mem"):
        _requested_units([ContainerResources({"aliyun.com/gpu-mem": "three"})])


@pytest.mark.parametrize("case", cases("gpushare", "pods"), ids=case_name)
def test_shares_of_a_bound_pod(case: Any) -> None:
    if case.get("unknown"):
        with pytest.raises(UnreadableError):
            _read_holding(case["annotations"], case["asked"])
        return
    held = _read_holding(case["annotations"], case["asked"])

    share = case.get("share")
    assert held == (Holding(1, (Part(share["index"], 0, share["memory_mib"]),)) if share else None)


@pytest.mark.parametrize("case", cases("gpushare", "bindings"), ids=case_name)
def test_annotations_written_with_the_binding(case: Any) -> None:
    written = _binding_annotations(containers_of(case), case["index"], case["gpu_memory_mib"], case["unix_time_ns"])

    assert written == case["annotations"]


def test_what_is_written_is_read_back_as_what_was_asked() -> None:
    containers = [ContainerResources({"aliyun.com/gpu-mem": "3"})]

    held = _read_holding(_binding_annotations(containers, 1, 15360, 17), 3)

    assert held == Holding(1, (Part(1, 0, 3072),))


@given(st.text(), st.text())
def test_any_text_is_read_conservatively(index: str, memory: str) -> None:
    with contextlib.suppress(UnreadableError):
        held = _read_holding({gpushare.INDEX: index, gpushare.POD_MEMORY: memory}, 3)
        assert held is not None
        assert all(part.gpu >= 0 and part.mib >= 3 * 1024 for part in held.parts)
