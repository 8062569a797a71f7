"""Room for a gang of whole nodes in a scattered cluster, by the planner's own plan; chaos's checker judges it."""

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kerf import QUEUE_RBAC, RBAC, SCHEDULER_CONFIG, SERVICE_ACCOUNT
from tests.controlplane.objects import gpu_node
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import KerfCluster, KerfProcess, Manifest
from tests.tools.chaos.loops import Loop
from tests.tools.chaos.modes import RECORD, TOKEN
from tests.tools.chaos.moves import checker, manifests, worlds
from tests.tools.chaos.moves.kubelets import Kubelets
from tests.tools.chaos.moves.plans import Owner, OwnerPlan
from tests.tools.chaos.witnesses import MOVES, Witness

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

WITHIN_S = 60.0
GATES = [{"name": "kerf.dev/queue"}]
GPUS = 4
"""GPUs per node."""
PLAIN = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


class Scattered:
    """Nodes with one pod of one GPU each, of Deployments and Jobs."""

    def __init__(self, plane: ControlPlane, directory: Path, num_nodes: int, *, extender: bool) -> None:
        self.plane = plane
        tokens, plain = directory / "operators", directory / "plain.yaml"
        tokens.write_text(f"{TOKEN}\n")
        plain.write_text(PLAIN)
        plane.request("POST", manifests.MAPS, {"metadata": {"name": RECORD}})
        self.kerf = KerfProcess(
            plane,
            f"kerf-{num_nodes}",
            *("--set=queue.enabled=true", f"--set=queue.extender={json.dumps(extender)}"),
            *("--set=queue.reserve_after_s=3600", f"--set=defrag.record=default/{RECORD}"),
            f"--set=access.apply_token_file={tokens}",
        )
        config = SCHEDULER_CONFIG / "decisive.yaml" if extender else plain
        url = self.kerf.url if extender else None
        self.scheduler = plane.start_scheduler(config, name=f"scheduler-{num_nodes}", extender_url=url)
        self.cluster = KerfCluster(plane, self.kerf)
        self.owners = list(_owners(num_nodes))
        self._loop = Loop()
        self._loop.start()
        self.witness = Witness(plane.url, plane.token("admin"), plane.certificate, MOVES)
        self._loop.run(self.witness.start())
        self._kubelets = Kubelets(plane.api("admin"), self.pods)
        self._kubelets.start()
        self._fill(num_nodes)

    def _fill(self, num_nodes: int) -> None:
        """Create one pod per node: fillers of three GPUs leave room for only one."""
        self.cluster.add_nodes(*(gpu_node(f"n{number:02}", gpus=GPUS) for number in range(num_nodes)))
        for number in range(num_nodes):
            self.cluster.submit(f"filler-{number}", gpus=GPUS - 1, schedulingGates=GATES)
        wait_until(lambda: len(self._on("filler")) == num_nodes, WITHIN_S, "there is one filler on each node")
        for owner in self.owners:
            self.plane.request("POST", manifests.PATHS[owner.kind], manifests.owner(owner))
            if owner.keeps is not None:
                self.plane.request("POST", manifests.BUDGETS, manifests.budget(owner.name, owner.keeps))
        wait_until(lambda: len(set(self._on("work"))) == num_nodes, WITHIN_S, "all nodes are full")
        for number in range(num_nodes):
            self.cluster.delete_pod(f"filler-{number}")
        wait_until(lambda: not self._on("filler"), WITHIN_S, "only one GPU of each node is taken")

    def pods(self) -> list[Manifest]:
        """The pods that the witness has seen."""
        seen = self.witness.seen
        return self._loop.call(lambda: [dict(pod) for pod in seen.pods.values()])

    def _on(self, prefix: str) -> list[str]:
        """Nodes of the ready pods by the prefix of their names."""
        there = [pod for pod in self.pods() if pod["metadata"]["name"].startswith(prefix)]
        return [pod["spec"]["nodeName"] for pod in there if worlds.ready(pod)]

    def gang(self, size: int) -> None:
        """Create a gang of whole nodes, and wait until it waits."""
        annotations = {"kerf.dev/gang": "train", "kerf.dev/gang-size": str(size)}
        for number in range(size):
            self.cluster.submit(f"g{number}", gpus=GPUS, annotations=annotations, schedulingGates=GATES)

        def waits(name: str) -> bool:
            return "kerf.dev/skipped" in self.cluster.pod(name)["metadata"]["annotations"]

        wait_until(lambda: all(waits(f"g{number}") for number in range(size)), WITHIN_S, "the gang waits")

    def ask(self, path: str, body: object) -> Any:
        """Kerf's answer to an operator."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        request = urllib.request.Request(self.kerf.url + path, json.dumps(body).encode(), headers, method="POST")
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read())

    def make_room(self) -> Manifest:
        """Ask for a plan, have it carried out, and wait for its end."""
        plan: Manifest = self.ask("/defrag", {"for": "default/train"})
        assert plan["fits"], plan["impossible"]
        self.ask("/defrag/apply", {"id": plan["id"]})
        wait_until(lambda: self.kerf.get("/defrag")["phase"] not in ("moving", "placing"), WITHIN_S, "the plan ends")
        return plan

    def judge(self, num_moves: int) -> None:
        """No promise was broken, and as many pods were evicted as planned."""
        num_owned = sum(owner.replicas for owner in self.owners)
        wait_until(lambda: len(self._on("work")) == num_owned, WITHIN_S, "all run again")
        journal = self.witness.journal
        assert journal is not None
        told = self._loop.call(journal.copy)
        assert checker.replay(told) == []
        assert checker.num_moved(told) == num_moves

    def close(self) -> None:
        for path in (*manifests.PATHS.values(), manifests.BUDGETS):
            self.plane.request("DELETE", f"{path}?propagationPolicy=Background")
        for pod in self.cluster.pods():
            with contextlib.suppress(Exception):
                self.cluster.delete_pod(pod["metadata"]["name"])
        wait_until(lambda: not self.cluster.pods(), WITHIN_S, "all pods are gone")
        self.cluster.clean()
        self.plane.request("DELETE", f"{manifests.MAPS}/{RECORD}")

    def stop(self) -> None:
        self._kubelets.stop()
        self._loop.run(self.witness.stop())
        self._loop.stop()
        self.scheduler.stop()
        self.kerf.stop()


def _owners(num_nodes: int) -> Iterator[OwnerPlan]:
    """Deployments and Jobs of two pods; of Deployments one or both have to stay available."""
    for number in range(num_nodes // 2):
        name, kinds = f"work-{number:02}", (Owner.DEPLOYMENT, Owner.JOB, Owner.DEPLOYMENT)
        kind = kinds[number % 3]
        keeps = None if kind is Owner.JOB else 1 + number % 2
        yield OwnerPlan(name, kind, 2, 1, keeps=keeps)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with the controllers of workloads and disruption budgets."""
    with ControlPlane(tmp_path_factory.mktemp("gangs"), users={"kerf": SERVICE_ACCOUNT}) as running:
        running.apply(RBAC, QUEUE_RBAC)
        running.grant("kerf", {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]})
        running.start_controller_manager(
            *("deployment-controller", "replicaset-controller", "job-controller", "disruption-controller")
        )
        yield running


@contextlib.contextmanager
def scattered(plane: ControlPlane, directory: Path, num_nodes: int, *, extender: bool = True) -> Iterator[Scattered]:
    made = Scattered(plane, directory, num_nodes, extender=extender)
    with contextlib.ExitStack() as ends:
        ends.callback(made.stop)
        ends.callback(made.close)
        yield made


def test_a_gang_of_4_of_50_scattered_nodes_starts_after_the_planned_moves(plane: ControlPlane, tmp_path: Path) -> None:
    with scattered(plane, tmp_path, 50) as room:
        room.gang(4)
        plan = room.make_room()
        assert len(plan["moves"]) == 4
        nodes = {room.cluster.node_of(f"g{number}") for number in range(4)}
        assert nodes == {pod["node"] for pod in plan["target"]}
        assert len(nodes) == 4
        assert room.kerf.get("/defrag")["phase"] == "done"
        room.judge(num_moves=4)
        kept = {owner.name for owner in room.owners if owner.keeps == owner.replicas}
        moved = {move["pod"].partition("/")[2][: len("work-00")] for move in plan["moves"]}
        assert kept
        assert not moved & kept


def test_the_same_in_small_where_kube_scheduler_calls_nobody(plane: ControlPlane, tmp_path: Path) -> None:
    with scattered(plane, tmp_path, 8, extender=False) as room:
        room.gang(2)
        plan = room.make_room()
        assert {room.cluster.node_of(f"g{number}") for number in range(2)} == {pod["node"] for pod in plan["target"]}
        assert room.kerf.get("/defrag")["phase"] == "done"
        room.judge(num_moves=2)
