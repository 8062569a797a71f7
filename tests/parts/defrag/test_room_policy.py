"""Room that Kerf makes by itself, on the real API server and ReplicaSet controller: within its windows, if it may; and
nodes that it empties, by itself or for `kerf drain`."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kerf import QUEUE_RBAC, RBAC, ROOT, SERVICE_ACCOUNT
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import clean_environment, wait_until
from tests.parts.defrag.test_making_room import WITHIN_S, Room, scattered

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

EAGER = (
    *("--set=defrag.every_s=1", "--set=defrag.after_s=0", "--set=defrag.rest_s=0"),
    "--set=defrag.least_gain=0.001",  # who was started a second ago loses next to nothing, and a minute to start again
)
ALWAYS = '--set=defrag.windows=["00:00-24:00"]'
QUIET_S = 8.0
"""Several looks of the policy."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with what makes pods anew, and what counts disruptions."""
    with ControlPlane(tmp_path_factory.mktemp("policy"), users={"kerf": SERVICE_ACCOUNT}) as running:
        running.apply(RBAC, QUEUE_RBAC)
        running.grant("kerf", {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]})
        running.start_controller_manager("replicaset-controller", "disruption-controller")
        yield running


@contextmanager
def eager(plane: ControlPlane, *options: str, gang: bool = True) -> Iterator[Room]:
    """On each of four nodes a pod has two of four GPUs, a gang of two whole nodes waits, Kerf goes by its policy."""
    with scattered(plane, *EAGER, *options) as room:
        if gang:
            room.gang()
        yield room


def not_now() -> str:
    """A window that is over hours before this day's hour comes again."""
    begin = datetime.now(UTC) + timedelta(hours=2)
    return f'--set=defrag.windows=["{begin:%H}:00-{begin:%H}:30"]'


def policy_of(room: Room) -> Any:
    return room.cluster.kerf.get("/defrag")["policy"]


def uids(room: Room) -> dict[str, str]:
    return {app: room.pod_of(app)["metadata"]["uid"] for app in room.on_nodes()}


def test_a_gang_that_waits_gets_its_nodes_without_anybody_asking(plane: ControlPlane) -> None:
    with eager(plane, "--set=defrag.mode=act", ALWAYS) as room:
        apps = room.on_nodes().keys()
        wait_until(lambda: all(room.cluster.node_of(name) for name in ("g0", "g1")), WITHIN_S, "the gang has its nodes")
        state = room.ends("done")
        assert state["target"] == "default/g0, default/g1"
        assert (len(state["moves"]), state["evicted"], state["kept"]) == (2, 2, [])
        wait_until(lambda: room.on_nodes().keys() == apps, WITHIN_S, "all that were moved run")
        assert policy_of(room)["begun"] == 1
        time.sleep(QUIET_S)
        assert room.state()["evicted"] == 2, "nobody is moved once nobody waits"


@pytest.mark.parametrize("outside", [False, True], ids=["advise", "outside of the windows"])
def test_it_only_tells(plane: ControlPlane, outside: bool) -> None:
    options = ("--set=defrag.mode=act", not_now()) if outside else ("--set=defrag.mode=advise", ALWAYS)
    with eager(plane, *options) as room:
        before = uids(room)
        assert "2 pods moved" in room.cluster.event("g0", "MovesWouldHelp")
        time.sleep(QUIET_S)
        assert uids(room) == before
        told = policy_of(room)
        assert (told["begun"], told["fault"]) == (0, "")
        (advice,) = told["advice"]
        assert (advice["purpose"], advice["target"], advice["moves"]) == ("room", "default/g0, default/g1", 2)
        assert ("defrag.windows" if outside else "defrag.mode") in advice["why_not"]
        assert room.state()["phase"] == "none"
        assert len(room.cluster.events("g0", "MovesWouldHelp")) == 1


def test_a_pod_leaves_a_gpu_that_has_become_sick(plane: ControlPlane) -> None:
    options = ("--set=defrag.mode=act", "--set=defrag.after_s=3600", "--set=defrag.heal=true", "--set=defrag.sick_s=2")
    with eager(plane, *options) as room:
        app = next(app for app, node in room.on_nodes().items() if node == "a")
        others = {other: uid for other, uid in uids(room).items() if other != app}
        held = room.pod_of(app)["metadata"]["annotations"]["kerf.dev/assigned-gpus"].split(",")
        gpus = [
            {
                "index": index,
                "model": "NVIDIA-A100-SXM4-80GB",
                "memory_mib": 81_920,
                "healthy": str(index) not in held[:1],
            }
            for index in range(4)
        ]
        annotations = {"metadata": {"annotations": {"kerf.dev/gpus": json.dumps(gpus)}}}
        plane.request("PATCH", "/api/v1/nodes/a", annotations, "application/merge-patch+json")
        wait_until(lambda: room.on_nodes().get(app, "a") != "a", WITHIN_S, "it has left the node of the sick GPU")
        state = room.ends("done")
        assert (state["target"], len(state["moves"])) == ("moving pods off unhealthy GPUs", 1)
        assert {other: uid for other, uid in uids(room).items() if other != app} == others
        time.sleep(QUIET_S)
        assert room.state()["evicted"] == 1, "it is moved once"


def test_nodes_are_kept_free_while_nobody_waits(plane: ControlPlane) -> None:
    options = ("--set=defrag.mode=act", ALWAYS, "--set=defrag.free_nodes=2")
    with eager(plane, *options, gang=False) as room:
        apps = room.on_nodes().keys()
        state = room.ends("done")
        free = sorted(set("abcd") - set(room.on_nodes().values()))
        assert (state["target"], state["evicted"]) == (f"emptying {', '.join(free)}", 2)
        wait_until(lambda: room.on_nodes().keys() == apps, WITHIN_S, "all that were moved run")
        time.sleep(QUIET_S)
        assert (room.state()["evicted"], policy_of(room)["begun"]) == (2, 1), "as many as were wished for, and no more"


def test_a_node_is_emptied_before_maintenance(plane: ControlPlane, tmp_path: Path) -> None:
    """As its page says: cordon, `kerf drain --apply`, and nothing is left for kubectl but pods without GPUs."""
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
