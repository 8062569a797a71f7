"""Taking away what a run has left of what makes pods anew, and of what was written down."""

from typing import Final

from tests.controlplane import ApiError, ControlPlane, wait_until
from tests.tools.chaos.modes import RECORD
from tests.tools.chaos.moves import manifests

_PODS: Final = "/api/v1/namespaces/default/pods"


def clean(plane: ControlPlane) -> None:
    """Controllers first, then their pods: one that is late may make another."""
    for path in (*manifests.PATHS.values(), manifests.BUDGETS):
        plane.request("DELETE", f"{path}?propagationPolicy=Background")
    try:
        plane.request("DELETE", f"{manifests.MAPS}/{RECORD}")
    except ApiError as error:
        if error.status != 404:
            raise
    wait_until(lambda: _emptied(plane), 30.0, "no pod is made any more")


def _emptied(plane: ControlPlane) -> bool:
    plane.request("DELETE", f"{_PODS}?gracePeriodSeconds=0")
    return not any(plane.request("GET", path)["items"] for path in (*manifests.PATHS.values(), _PODS))
