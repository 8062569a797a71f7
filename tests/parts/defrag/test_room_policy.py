"""`defrag.mode: act` and `kerf drain` on the real API server and ReplicaSet controller."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.controlplane.kerf import QUEUE_RBAC, RBAC, ROOT, SERVICE_ACCOUNT
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import clean_environment, wait_until
from tests.parts.defrag.test_making_room import WITHIN_S, Room, scattered

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

EAGER = (
    *("--set=defrag.every_s=1", "--set=defrag.after_s=0", "--set=defrag.rest_s=0"),
    "--set=defrag.least_gain=0.001",  # pods that started a second ago lose a minute, more than the target gains
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with the controllers of ReplicaSets and disruption budgets."""
    with ControlPlane(tmp_path_factory.mktemp("policy"), users={"kerf": SERVICE_ACCOUNT}) as running:
        running.apply(RBAC, QUEUE_RBAC)
        running.grant("kerf", {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]})
        running.start_controller_manager("replicaset-controller", "disruption-controller")
        yield running


@contextmanager
def eager(plane: ControlPlane, *options: str, gang: bool = True) -> Iterator[Room]:
    """Pods on two of the four GPUs of each of four nodes, a waiting gang of two whole nodes, and Kerf with a policy."""
    with scattered(plane, *EAGER, *options) as room:
        if gang:
            room.gang()
        yield room


def uids(room: Room) -> dict[str, str]:
    return {app: room.pod_of(app)["metadata"]["uid"] for app in room.on_nodes()}


def test_a_waiting_gang_gets_its_nodes_by_the_policy(plane: ControlPlane) -> None:
    windows = '--set=defrag.windows=["00:00-24:00"]'
    with eager(plane, "--set=defrag.mode=act", windows) as room:
        apps = room.on_nodes().keys()
        wait_until(lambda: all(room.cluster.node_of(name) for name in ("g0", "g1")), WITHIN_S, "the gang has its nodes")
        state = room.ends("done")
        assert state["target"] == "default/g0, default/g1"
        assert (len(state["moves"]), state["evicted"], state["kept"]) == (2, 2, [])
        wait_until(lambda: room.on_nodes().keys() == apps, WITHIN_S, "all that were moved run")
        assert room.cluster.kerf.get("/defrag")["policy"]["begun"] == 1


def test_a_pod_is_moved_off_an_unhealthy_gpu(plane: ControlPlane) -> None:
    options = ("--set=defrag.mode=act", "--set=defrag.after_s=3600", "--set=defrag.heal=true", "--set=defrag.sick_s=2")
    with eager(plane, *options) as room:
        app = next(app for app, node in room.on_nodes().items() if node == "a")
        others = {other: uid for other, uid in uids(room).items() if other != app}
        unhealthy = room.pod_of(app)["metadata"]["annotations"]["kerf.dev/assigned-gpus"].split(",")[0]
        model = {"model": "NVIDIA-A100-SXM4-80GB", "memory_mib": 81_920}
        gpus = [{"index": index, "healthy": str(index) != unhealthy, **model} for index in range(4)]
        annotations = {"metadata": {"annotations": {"kerf.dev/gpus": json.dumps(gpus)}}}
        plane.request("PATCH", "/api/v1/nodes/a", annotations, "application/merge-patch+json")
        wait_until(lambda: room.on_nodes().get(app, "a") != "a", WITHIN_S, "it has left the node of the unhealthy GPU")
        state = room.ends("done")
        assert (state["target"], len(state["moves"])) == ("moving pods off unhealthy GPUs", 1)
        assert {other: uid for other, uid in uids(room).items() if other != app} == others


def test_a_node_is_emptied_before_maintenance(plane: ControlPlane, tmp_path: Path) -> None:
    """As in the guide: cordon, then `kerf drain --apply`."""
    token = tmp_path / "operators"
    token.write_text("a-token-of-operators\n")

    def drain(room: Room, *arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "extender", "drain", "--server", room.cluster.kerf.url, *arguments]
        told = clean_environment() | {"KERF_SERVER_TOKEN_FILE": str(token)}
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, env=told)
        return done.returncode, done.stdout + done.stderr

    with eager(plane, f"--set=access.apply_token_file={token}", gang=False) as room:
        plane.request("PATCH", "/api/v1/nodes/a", {"spec": {"unschedulable": True}}, "application/merge-patch+json")
        before = uids(room)
        app = next(app for app, node in room.on_nodes().items() if node == "a")
        code, told = drain(room, "a")
        assert (code, uids(room)) == (0, before), told
        code, told = drain(room, "a", "--apply")
        assert code == 0, told
        assert room.on_nodes()[app] in {"b", "c", "d"}
        after = uids(room)
        assert {name for name in after if after[name] != before[name]} == {app}
        assert drain(room, "a", "-o", "json")[0] == 0, "there is nothing left to do"

        code, told = drain(room, "b", "c", "d")
        assert code == 3, told
        assert uids(room) == after
