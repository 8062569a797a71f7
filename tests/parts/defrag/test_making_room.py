"""Plans that stop or survive a kill of Kerf, on the real API server and ReplicaSet controller."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane.api import ApiError
from tests.controlplane.kerf import QUEUE_RBAC, RBAC, SCHEDULER_CONFIG, SERVICE_ACCOUNT
from tests.controlplane.objects import gpu_node
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import KerfCluster, KerfProcess, Manifest
from tests.e2e.kubelets import Kubelet

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

WITHIN_S = 60.0
REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
MAP = "/api/v1/namespaces/default/configmaps/kerf-defrag"
MOVING = "tests.parts.defrag.moving_kerf"
OPTIONS = (
    "--set=queue.enabled=true",
    "--set=queue.reserve_after_s=3600",
    "--set=defrag.record=default/kerf-defrag",
    "--set=defrag.budget_s=1",
)
GATES = [{"name": "kerf.dev/queue"}]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with the controllers of ReplicaSets and disruption budgets."""
    with ControlPlane(tmp_path_factory.mktemp("room"), users={"kerf": SERVICE_ACCOUNT}) as running:
        running.apply(RBAC, QUEUE_RBAC)
        running.grant("kerf", {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]})
        running.start_controller_manager("replicaset-controller", "disruption-controller")
        yield running


class Room:
    """Pods on two of the four GPUs of each of nodes a to d, and a waiting gang of two whole nodes."""

    def __init__(self, plane: ControlPlane, *options: str) -> None:
        self.plane = plane
        plane.request("POST", MAP.rpartition("/")[0], {"metadata": {"name": "kerf-defrag"}})
        kerf = KerfProcess(plane, "kerf-room", *OPTIONS, *options, module=MOVING)
        config = SCHEDULER_CONFIG / "decisive.yaml"
        self.scheduler = plane.start_scheduler(config, name="scheduler-room", extender_url=kerf.url)
        self.cluster = KerfCluster(plane, kerf)
        self.kubelet = Kubelet(plane)

    def scatter(self) -> None:
        """Create one pod on each node."""
        self.cluster.add_nodes(*(gpu_node(name, gpus=4) for name in "abcd"))
        for number in range(8):
            self.replica_set(f"rs{number}")
        wait_until(lambda: len(self.on_nodes()) == 8, WITHIN_S, "all nodes are full")
        kept = {node: name for name, node in self.on_nodes().items()}.values()
        gone = [name for name in self.on_nodes() if name not in kept]
        for name in gone:
            self.plane.request("DELETE", f"{REPLICA_SETS}/{name}?propagationPolicy=Background")

        def is_half_full() -> bool:
            for pod in [pod for name in gone for pod in self.pods_of(name)]:
                with contextlib.suppress(ApiError):  # the controller may create one more before its deletion arrives
                    self.cluster.delete_pod(pod["metadata"]["name"])
            return sorted(self.on_nodes().values()) == list("abcd")

        wait_until(is_half_full, WITHIN_S, "each node is half full")

    def gang(self) -> None:
        """Create the gang."""
        for number in range(2):
            gang = {"kerf.dev/gang": "train", "kerf.dev/gang-size": "2"}
            self.cluster.submit(f"g{number}", gpus=4, annotations=gang, schedulingGates=GATES)

    def replica_set(self, name: str) -> None:
        container = {"name": "main", "image": "example/work", "resources": {"limits": {"nvidia.com/gpu": 2}}}
        labels = {"app": name, "kerf.dev/queue": "enabled"}
        spec: dict[str, Any] = {"containers": [container], "schedulingGates": GATES}
        body = {
            "metadata": {"name": name},
            "spec": {
                **{"replicas": 1, "selector": {"matchLabels": {"app": name}}},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }
        self.plane.request("POST", REPLICA_SETS, body)

    def waits(self, name: str) -> bool:
        return "kerf.dev/skipped" in self.cluster.pod(name)["metadata"].get("annotations", {})

    def pods_of(self, app: str) -> list[Manifest]:
        pods = self.cluster.pods()
        return [pod for pod in pods if pod["metadata"].get("labels", {}).get("app") == app]

    def pod_of(self, app: str) -> Manifest:
        (found,) = self.pods_of(app)
        return found

    def on_nodes(self) -> dict[str, str]:
        """Nodes of running pods by ReplicaSet."""
        return {
            pod["metadata"]["labels"]["app"]: pod["spec"]["nodeName"]
            for pod in self.cluster.pods()
            if pod["status"].get("phase") == "Running" and "app" in pod["metadata"].get("labels", {})
        }

    def plan(self) -> Manifest:
        """The pod on a goes to c, that on b to d, and the gang to a and b."""
        at = {node: app for app, node in self.on_nodes().items()}
        moves = []
        for step, (start, end) in enumerate([("a", "c"), ("b", "d")]):
            metadata = self.pod_of(at[start])["metadata"]
            controller = metadata["ownerReferences"][0]["uid"]
            where = {"from": start, "to": end, "step": step, "gpus": [], "cost_gpu_s": 1.0}
            moves.append(
                {"pod": f"default/{metadata['name']}", "uid": metadata["uid"], "controller": controller, **where}
            )
        target = [
            {"pod": f"default/{name}", "node": node, "gpus": [], "uid": self.cluster.pod(name)["metadata"]["uid"]}
            for name, node in (("g0", "a"), ("g1", "b"))
        ]
        return {"fits": True, "moves": moves, "cost_gpu_s": 2.0, "target": target, "emptied": [], "impossible": []}

    def state(self) -> Any:
        return self.cluster.kerf.get("/moving")

    def begin(self) -> None:
        answer = self.cluster.kerf.post("begin", self.plan())
        assert "id" in answer, answer

    def ends(self, phase: str) -> Any:
        wait_until(lambda: self.state()["phase"] == phase, WITHIN_S, f"the plan is {phase}")
        return self.state()

    def close(self) -> None:
        for found in self.plane.request("GET", REPLICA_SETS)["items"]:
            self.plane.request("DELETE", f"{REPLICA_SETS}/{found['metadata']['name']}?propagationPolicy=Background")
        for found in self.cluster.pods():
            with contextlib.suppress(ApiError):  # the kubelet may be faster
                self.cluster.delete_pod(found["metadata"]["name"])
        wait_until(lambda: not self.cluster.pods(), WITHIN_S, "all pods are gone")
        self.cluster.clean()
        self.plane.request("DELETE", MAP)

    def stop(self) -> None:
        self.scheduler.stop()
        self.cluster.kerf.stop()


@contextlib.contextmanager
def scattered(plane: ControlPlane, *options: str) -> Iterator[Room]:
    """A scattered cluster, which is removed however the test ends."""
    room = Room(plane, *options)
    with contextlib.ExitStack() as ends:
        ends.callback(room.stop)
        ends.enter_context(room.kubelet)
        ends.callback(room.close)
        room.scatter()
        yield room


@pytest.fixture
def room(plane: ControlPlane) -> Iterator[Room]:
    with scattered(plane) as made:
        made.gang()
        wait_until(lambda: made.waits("g0") and made.waits("g1"), WITHIN_S, "the gang waits")
        yield made


def test_a_budget_is_kept_and_stops_the_plan(room: Room) -> None:
    at = {node: app for app, node in room.on_nodes().items()}
    kept = room.pod_of(at["b"])["metadata"]["uid"]
    budget = {
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": at["b"]}}},
    }
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    room.plane.request("POST", path, budget)
    try:
        room.begin()
        state = room.ends("stopped")
    finally:
        room.plane.request("DELETE", f"{path}/keep")
    assert "disruption budget" in state["why"]
    assert [move["stage"] for move in state["moves"]] == ["done", "left"]
    assert room.pod_of(at["b"])["metadata"]["uid"] == kept
    assert len(room.on_nodes()) == 4


@pytest.mark.parametrize("stage", ["evicting", "starting"])
def test_a_kerf_that_is_killed_loses_nothing(room: Room, stage: str) -> None:
    """The pod of the first move has its new place, and no other pod was evicted."""
    at = {node: app for app, node in room.on_nodes().items()}
    second = room.pod_of(at["b"])["metadata"]["uid"]
    room.kubelet.holds = stage == "evicting"
    room.begin()
    if stage == "evicting":
        first = room.pod_of(at["a"])["metadata"]["name"]
        wait_until(lambda: "deletionTimestamp" in room.cluster.pod(first)["metadata"], WITHIN_S, "the first pod ends")
    else:
        wait_until(lambda: room.state()["moves"][0]["stage"] == stage, WITHIN_S, "its replacement is released")
    port = room.cluster.kerf.port
    room.cluster.kerf.process.kill()
    room.cluster.kerf = KerfProcess(room.plane, "kerf-room", *OPTIONS, module=MOVING, port=port)
    room.kubelet.holds = False
    state = room.ends("stopped")
    assert "Kerf was restarted" in state["why"]
    assert state["moves"][1]["stage"] == "planned"
    wait_until(lambda: len(room.on_nodes()) == 4, WITHIN_S, "all four run")
    assert room.on_nodes()[at["a"]] == "c"
    assert room.pod_of(at["b"])["metadata"]["uid"] == second


def test_a_replacement_that_kube_scheduler_tried_while_kerf_was_down_still_has_its_place(room: Room) -> None:
    """If an extender does not answer, kube-scheduler clears the nomination, and asks again before Kerf's mover runs."""
    at = {node: app for app, node in room.on_nodes().items()}

    def replacement() -> Manifest | None:
        found = [pod for pod in room.pods_of(at["a"]) if "deletionTimestamp" not in pod["metadata"]]
        released = [pod for pod in found if "kerf.dev/planned-by" in pod["metadata"].get("annotations", {})]
        return released[0] if released and not released[0]["spec"].get("nodeName") else None

    room.scheduler.signal(signal.SIGSTOP)
    room.begin()
    wait_until(replacement, WITHIN_S, "the replacement is released")
    port = room.cluster.kerf.port
    room.cluster.kerf.process.kill()
    room.scheduler.signal(signal.SIGCONT)
    told = lambda: (found := replacement()) and not found["status"].get("nominatedNodeName")  # noqa: E731 - a look
    wait_until(told, WITHIN_S, "kube-scheduler has cleared the nomination")
    room.cluster.kerf = KerfProcess(room.plane, "kerf-room", *OPTIONS, module=MOVING, port=port)
    assert [move["stage"] for move in room.ends("stopped")["moves"]] == ["done", "planned"]
    assert room.on_nodes()[at["a"]] == "c"
