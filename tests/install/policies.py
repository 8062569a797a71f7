"""The admission policy as it is shipped, in force on a control plane of the tests."""

from tests.controlplane.api import ApiError
from tests.controlplane.kerf import ROOT
from tests.controlplane.objects import pod
from tests.controlplane.plane import USERS, ControlPlane
from tests.controlplane.processes import wait_until

POLICY = ROOT / "manifests" / "admission-policy.yaml"
HAMI_PLUGIN = "system:serviceaccount:kube-system:hami-device-plugin"
_EXCEPTED = "'system:kube-scheduler'"


def policy_for_tests() -> str:
    """With the tests' `admin` excepted: it plays kubelets and schedulers of others, and cleans up."""
    text = POLICY.read_text()
    assert _EXCEPTED in text
    return text.replace(_EXCEPTED, f"{_EXCEPTED}, '{USERS['admin']}'", 1)  # of the first policy alone


def enforce(plane: ControlPlane) -> None:
    """Install it as it is, and return when it holds."""
    plane.apply(POLICY)
    wait_until(lambda: _refuses(plane), 20.0, "the policy is in force")


def _refuses(plane: ControlPlane) -> bool:
    probe = pod("probe", annotations={"kerf.dev/assigned-gpus": "0"})
    try:
        plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", probe)
    except ApiError as error:
        return "is written by Kerf" in error.message
    return False
