"""What-if in a process in which the package of docs/examples/kerf-amd is installed: run by tests/vendors."""

import msgspec

from tests.api.services import Kerf
from tests.ledger.builders import pod_manifest
from tests.vendors.with_amd import amd_pod, kerf_fixture

__all__ = ["kerf_fixture"]


def test_what_if_knows_both(kerf: Kerf) -> None:
    question = {"pods": [amd_pod("w", 8), pod_manifest("x", 8)]}
    answer = kerf.post("/what-if", msgspec.json.encode(question)).json()
    assert {pod["pod"]: pod["node"] for pod in answer["assignments"]} == {"default/w": "amd", "default/x": "nvidia"}
