"""What is refused of claims that a run leaves behind."""

from typing import Any

import pytest

from tests.tools.bench.claims import DRIVER, broken


def pod(name: str, node: str) -> dict[str, Any]:
    spec = {"nodeName": node, "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
    return {"metadata": {"namespace": "default", "name": name}, "spec": spec}


def claim(name: str, *devices: tuple[str, str], driver: str = DRIVER) -> dict[str, Any]:
    results = [{"driver": driver, "pool": pool, "device": device} for pool, device in devices]
    status = {"allocation": {"devices": {"results": results}}} if results else {}
    return {"metadata": {"namespace": "default", "name": name}, "status": status}


@pytest.mark.parametrize(
    ("claims", "fault"),
    [
        pytest.param([claim("a", ("n", "gpu-0")), claim("b", ("n", "gpu-1"))], "", id="right"),
        pytest.param([claim("a", ("n", "gpu-0")), claim("b", ("n", "gpu-0"))], "both have n/gpu-0", id="twice"),
        pytest.param([claim("a", ("n", "gpu-0")), claim("b", ("m", "gpu-1"))], "on n has", id="another node's"),
        pytest.param([claim("a", ("n", "gpu-0")), claim("b")], "has 0 devices", id="none"),
        pytest.param([claim("a", ("n", "gpu-0"))], "has 0 devices", id="no claim"),
        pytest.param(
            [claim("a", ("n", "gpu-0")), claim("b", ("n", "gpu-1"), driver="other")],
            "other/n/gpu-1",
            id="another driver",
        ),
    ],
)
def test_bound_pods_have_their_devices(claims: list[dict[str, Any]], fault: str) -> None:
    faults = broken([pod("a", "n"), pod("b", "n"), pod("waiting", "")], claims, 1)
    assert len(faults) == bool(fault)
    assert fault in "".join(faults)


def test_claims_made_from_templates_are_found() -> None:
    made = {**pod("a", "n"), "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "a-gpu-x"}]}}
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "pod"}]
    assert not broken([made], [claim("a-gpu-x", ("n", "gpu-0"))], 1)
