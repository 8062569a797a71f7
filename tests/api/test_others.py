"""The second extender entry, ignorable and without bind: `/others/filter` and `/others/prioritize`."""

from collections.abc import Sequence
from typing import Any

import pytest

from extender.plugins.pod_resources import UNMARKED
from tests.api import bodies
from tests.api.bodies import CLUSTER, NAMES, Manifest, pod
from tests.api.services import Kerf, Shared, running

ONE = {"kerf.dev/gpu-count": "1"}


@pytest.fixture
def kerf(shared: Shared) -> Kerf:
    return shared()


def filter_others(kerf: Kerf, manifest: Manifest, names: Sequence[str]) -> Any:
    return kerf.post("/others/filter", bodies.args(manifest, names)).json()


def prioritize_others(kerf: Kerf, manifest: Manifest, names: Sequence[str]) -> Any:
    return kerf.post("/others/prioritize", bodies.args(manifest, names)).json()


def limited(**limits: str) -> Manifest:
    """A pod that asks by annotation, and has these limits."""
    manifest = pod("p", annotations=ONE)
    manifest["spec"]["containers"] = [{"name": "c", "resources": {"limits": limits}}]
    return manifest


MARKED = limited(**{"kerf.dev/gpu": "1"})


def test_pods_without_gpus_pass_and_are_kept_off_gpus(kerf: Kerf) -> None:
    assert filter_others(kerf, pod("web"), NAMES)["NodeNames"] == list(NAMES)
    scores = {line["Host"]: line["Score"] for line in prioritize_others(kerf, pod("web"), ["cpu-0", "t4-0"])}
    assert scores == {"cpu-0": 10, "t4-0": 0}


@pytest.mark.parametrize("manifest", [MARKED, pod("p", gpus=1), limited(**{"nvidia.com/mig-1g.5gb": "1"})])
def test_what_the_first_entry_has_decided_stays(kerf: Kerf, manifest: Manifest) -> None:
    assert filter_others(kerf, manifest, ["t4-1"])["NodeNames"] == ["t4-1"]
    assert kerf.num_reservations == 0
    assert prioritize_others(kerf, manifest, NAMES) == []


def test_the_marker_is_not_a_request(kerf: Kerf) -> None:
    assert kerf.filter(MARKED, NAMES)["NodeNames"] == ["t4-0"]
    assert "kerf.dev/gpu" not in str(kerf.filter(pod("big", gpus=99), NAMES)["FailedNodes"])
    bare = pod("bare")
    bare["spec"]["containers"] = MARKED["spec"]["containers"]
    assert kerf.filter(bare, NAMES)["NodeNames"] == list(NAMES)  # asks for nothing


@pytest.mark.parametrize(
    "manifest",
    [pod("p", annotations=ONE), pod("p", labels={"genius/gpu-memory-each": "8000"}), limited(cpu="1")],
)
def test_a_pod_by_annotation_alone_is_never_bound_without_its_gpus(kerf: Kerf, manifest: Manifest) -> None:
    answer = filter_others(kerf, manifest, ["t4-0", "cpu-0"])
    assert (answer["NodeNames"], answer["Error"]) == ([], "")
    assert answer["FailedAndUnresolvableNodes"] == {"t4-0": UNMARKED, "cpu-0": UNMARKED}
    assert filter_others(kerf, manifest, ["t4-0", "cpu-0"]) == answer  # constant
    assert kerf.num_reservations == 0
    assert kerf.filter(manifest, NAMES)["NodeNames"] == ["t4-0"]  # one entry alone, as before: there Kerf binds


def test_an_invalid_request_is_rejected_with_its_fault(kerf: Kerf) -> None:
    answer = filter_others(kerf, pod("p", annotations={"kerf.dev/gpu-count": "many"}), ["t4-0"])
    assert "kerf.dev/gpu-count" in answer["FailedAndUnresolvableNodes"]["t4-0"]


def test_mig_devices_that_the_first_entry_does_not_list_are_ranked_here(kerf: Kerf) -> None:
    """kube-scheduler counts them itself, so anyone may bind the pod."""
    answer = filter_others(kerf, limited(**{"nvidia.com/mig-9g.999gb": "1"}), ["t4-0"])
    assert "mig-9g.999gb" not in str(answer["Error"])
    assert UNMARKED not in str(answer)


def test_on_standby_the_first_entry_refuses_and_the_second_goes_on() -> None:
    """GPU pods wait, others do not."""
    with running(CLUSTER, leader_election__mode="never") as kerf:
        assert "standby" in kerf.filter(pod("p", gpus=1), NAMES)["Error"]
        assert filter_others(kerf, pod("web"), NAMES)["NodeNames"] == list(NAMES)
        assert UNMARKED in filter_others(kerf, pod("p", annotations=ONE), NAMES)["FailedAndUnresolvableNodes"].values()
        assert len(prioritize_others(kerf, pod("web"), NAMES)) == len(NAMES)


def test_only_filter_and_prioritize_are_there(kerf: Kerf) -> None:
    for verb in ("bind", "preempt"):
        assert kerf.post(f"/others/{verb}", b"{}").status == 404
