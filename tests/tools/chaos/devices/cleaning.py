"""Taking away what a run has left of claims and slices."""

import contextlib

from tests.controlplane import ApiError, ControlPlane, wait_until
from tests.tools.chaos.devices import manifests

_MERGE = "application/merge-patch+json"


def clean(plane: ControlPlane) -> None:
    """Claims are let go even of what protects them."""
    for path in (manifests.SLICES, manifests.TEMPLATES, manifests.CLAIMS):
        plane.request("DELETE", path)
    for claim in plane.request("GET", manifests.CLAIMS)["items"]:
        path = f"{manifests.CLAIMS}/{claim['metadata']['name']}"
        with contextlib.suppress(ApiError):  # it has gone by itself
            plane.request("PATCH", f"{path}/status", {"status": {"allocation": None, "reservedFor": None}}, _MERGE)
        with contextlib.suppress(ApiError):
            plane.request("PATCH", path, {"metadata": {"finalizers": None}}, _MERGE)
    wait_until(lambda: not plane.request("GET", manifests.CLAIMS)["items"], 30.0, "no claim is left")
