from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster.contracts import gpushare
from extender.cluster.contracts.formats import Ask, ContainerResources, GpuShare
from extender.core.requests import RequestError
from tests.cluster.contracts.goldens import case_name, cases, containers_of


@pytest.mark.parametrize("case", cases("gpushare", "nodes"), ids=case_name)
def test_register(case: Any) -> None:
    register = gpushare.read_register(case["capacity"], case["allocatable"])

    if case["memory_mib"] is None:
        assert register is None
    else:
        assert register is not None
        assert [gpu.memory_mib for gpu in register.gpus] == case["memory_mib"]
        assert [gpu.index for gpu in register.gpus] == list(range(len(register.gpus)))
        assert register.withheld == case.get("withheld", 0)
        assert len(register.warnings) == case.get("num_warnings", 0)


@pytest.mark.parametrize("case", cases("gpushare", "asks"), ids=case_name)
def test_ask(case: Any) -> None:
    ask = gpushare.read_ask(containers_of(case))

    asked = case["memory_each_mib"]
    assert ask == (None if asked is None else Ask(1, memory_each_mib=asked))


def test_an_ask_that_is_no_number_is_refused() -> None:
    with pytest.raises(RequestError, match=r"aliyun\.com/gpu-mem"):
        gpushare.read_ask([ContainerResources({"aliyun.com/gpu-mem": "three"})])


@pytest.mark.parametrize("case", cases("gpushare", "pods"), ids=case_name)
def test_shares_of_a_bound_pod(case: Any) -> None:
    held = gpushare.read_shares(case["annotations"], case["asked"])

    if case.get("none"):
        assert held is None
    else:
        assert held is not None
        assert held.shares == ((GpuShare(0, **case["share"]),) if case["share"] else ())
        assert held.unknown == case.get("unknown", 0)
        assert len(held.warnings) == case.get("num_warnings", 0)


@pytest.mark.parametrize("case", cases("gpushare", "bindings"), ids=case_name)
def test_annotations_written_with_the_binding(case: Any) -> None:
    written = gpushare.binding_annotations(
        containers_of(case), case["index"], case["gpu_memory_mib"], case["unix_time_ns"]
    )

    assert written == case["annotations"]


def test_what_is_written_is_read_back_as_what_was_asked() -> None:
    containers = [ContainerResources({"aliyun.com/gpu-mem": "3"})]

    held = gpushare.read_shares(gpushare.binding_annotations(containers, 1, 15360, 17), 3)

    assert held is not None
    assert held.shares == (GpuShare(0, 3072, index=1),)


@given(st.text(), st.text())
def test_any_text_is_read_conservatively(index: str, memory: str) -> None:
    held = gpushare.read_shares({gpushare.INDEX: index, gpushare.POD_MEMORY: memory}, 3)

    assert held is not None
    assert held.unknown or all(share.index >= 0 and share.memory_mib >= 3 * 1024 for share in held.shares)
