"""Several replicas on a real control plane: one decides, another takes over, and no GPU is given twice meanwhile."""

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from tests.controlplane.api import ApiError
from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import Process, answers, own_hostname, wait_until
from tests.e2e.clusters import KerfCluster, KerfProcess, assigned_gpus
from tests.e2e.fixtures import Clusters
from tests.e2e.proxies import HoldingProxy, LeaderProxy

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

OWN = ("--set", "leader_election.mode=own")
PATIENT = ("--set", "leader_election.duration_s=10")
"""Who leads is not to change by itself on a machine that is busy."""
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kerf"
WITHIN_S = 60.0
ONE_GPU = {"genius/gpu-number": "1"}
"""By label alone, so that kube-scheduler's own count of GPUs is no help."""


class Replicas:
    """Two Kerfs behind one address, and the kube-scheduler that calls it."""

    def __init__(self, cluster: KerfCluster, replicas: list[KerfProcess], proxy: LeaderProxy) -> None:
        self.cluster = cluster
        self.replicas = replicas
        self._proxy = proxy

    def leader(self) -> KerfProcess:
        """Wait for a leader."""
        found = wait_until(lambda: self._proxy.leader, WITHIN_S, "a replica is ready")
        assert found is not None
        return found

    def other(self, than: KerfProcess) -> KerfProcess:
        """The other one."""
        return next(replica for replica in self.replicas if replica is not than)


@contextmanager
def service_mode(
    clusters: Clusters, *arguments: str, of_the_first: tuple[str, ...] = (), module: str = "extender"
) -> Iterator[Replicas]:
    """Kerf in Service mode; the first replica leads, and may be started with arguments, and as a module, of its own."""
    clusters.close()
    plane = clusters.plane
    with ExitStack() as stack:
        number = time.monotonic_ns()
        first = KerfProcess(plane, f"kerf-first-{number}", *OWN, *arguments, *of_the_first, module=module)
        stack.callback(first.process.stop, grace_s=0)
        second = KerfProcess(plane, f"kerf-second-{number}", *OWN, *arguments, ready_path="/syncz")
        stack.callback(second.process.stop, grace_s=0)
        proxy = stack.enter_context(LeaderProxy(first, second))
        scheduler = plane.start_scheduler(
            SCHEDULER_CONFIG / "decisive.yaml", name=f"scheduler-{number}", extender_url=proxy.url
        )
        stack.callback(scheduler.stop)
        replicas = Replicas(KerfCluster(plane, first), [first, second], proxy)
        stack.callback(lambda: _clean(replicas.cluster, replicas.replicas))
        yield replicas


def _clean(cluster: KerfCluster, replicas: list[KerfProcess]) -> None:
    """Leave the control plane empty, as the replica sees it that leads by now."""

    def leading() -> list[KerfProcess]:
        return [replica for replica in replicas if replica.process.running and answers(f"{replica.url}/readyz")]

    cluster.kerf = wait_until(leading, WITHIN_S, "a replica leads")[0]
    cluster.clean()


def booked(cluster: KerfCluster) -> list[tuple[str, int]]:
    """Node and index of every GPU that a bound pod has."""
    return [
        (found["spec"]["nodeName"], index)
        for found in cluster.pods()
        if "nodeName" in found["spec"]
        for index in assigned_gpus(found)
    ]


def status(kerf: KerfProcess, path: str = "/readyz") -> str:
    """What a replica says of itself, ready or not."""
    try:
        with urllib.request.urlopen(kerf.url + path, timeout=10) as answer:
            content = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            content = error.read()
    return str(json.loads(content)["status"])


def test_only_the_leader_answers(clusters: Clusters) -> None:
    with service_mode(clusters, *PATIENT) as replicas:
        leader = replicas.leader()
        standby = replicas.other(leader)
        replicas.cluster.add_nodes(gpu_node("node", gpus=1))
        assert (status(leader), status(standby, "/syncz")) == ("ok", "ok")
        assert status(standby).startswith("standby: lease kube-system/kerf is held by ")
        asked = {"metadata": {"name": "p", "namespace": "default", "uid": "u", "labels": ONE_GPU}}
        answer = standby.post("filter", {"Pod": asked, "NodeNames": ["node"]})
        assert answer["Error"].startswith(
            "this replica of Kerf does not decide now: standby: lease kube-system/kerf is held by "
        )
        binding = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "node"}
        assert "standby" in standby.post("bind", binding)["Error"]
        assert (leader.metric("kerf_leader"), standby.metric("kerf_leader")) == (1, 0)
        leader.process.signal(signal.SIGTERM)  # releases its lease, so that nobody has to wait for its end
        wait_until(lambda: status(standby) == "ok", WITHIN_S, "the other replica leads")


def test_after_kill_9_in_a_burst_the_other_replica_takes_over(clusters: Clusters) -> None:
    with service_mode(clusters) as replicas:
        leader = replicas.leader()
        cluster = replicas.cluster
        cluster.add_nodes(*(gpu_node(f"node-{number:02d}", gpus=8) for number in range(25)))
        for number in range(100):
            cluster.create(pod(f"burst-{number}", labels=ONE_GPU, cpu="10m"))
        wait_until(lambda: len(booked(cluster)) >= 20, WITHIN_S, "the burst is under way")
        successor = replicas.other(leader)
        bound_before = successor.metric("kerf_binds_total")
        leader.process.signal(signal.SIGKILL)
        killed = time.monotonic()
        for number in range(100, 200):
            cluster.create(pod(f"burst-{number}", labels=ONE_GPU, cpu="10m"))
        wait_until(lambda: successor.metric("kerf_binds_total") > bound_before, WITHIN_S, "the other replica binds")
        print(f"\nfail-over after kill -9: {time.monotonic() - killed:.2f} s to the first new binding (target: 5 s)")
        wait_until(lambda: len(booked(cluster)) >= 200, 2 * WITHIN_S, "all pods are bound", interval_s=0.5)
        taken = booked(cluster)
        assert len(taken) == len(set(taken)) == 200


def test_a_late_binding_of_a_paused_leader_fails(clusters: Clusters) -> None:
    """The leader has checked its lease and sent a Binding; it arrives when the successor has given the GPU away."""
    with HoldingProxy(clusters.plane) as network:
        arguments = ("--kubeconfig", str(network.kubeconfig(clusters.plane)))
        with service_mode(clusters, *PATIENT, of_the_first=arguments) as replicas:
            leader, cluster = replicas.leader(), replicas.cluster
            assert leader is replicas.replicas[0]
            cluster.add_nodes(gpu_node("node", gpus=1))
            network.hold_bindings()
            cluster.submit("early", labels=ONE_GPU)
            assert network.held.wait(WITHIN_S)
            leader.process.pause()
            successor = replicas.other(leader)
            wait_until(lambda: status(successor) == "ok", WITHIN_S, "the other replica leads")
            # As kube-scheduler would, which is waiting for an answer of the leader that sleeps.
            cluster.submit("late", labels=ONE_GPU)
            rival = cluster.pod("late")
            offered = successor.post("filter", {"Pod": rival, "NodeNames": ["node"]})
            binding = {"PodNamespace": "default", "PodName": "late", "PodUID": rival["metadata"]["uid"]}
            if offered["NodeNames"]:
                assert successor.post("bind", binding | {"Node": "node"}) == {"Error": ""}
            wait_until(lambda: booked(cluster), WITHIN_S, "the GPU is given away")
            before = booked(cluster)

            network.let_go()
            wait_until(lambda: network.statuses, WITHIN_S, "the late Binding is answered")
            assert network.statuses[0] == 409
            leader.process.signal(signal.SIGCONT)
            wait_until(lambda: status(leader).startswith("standby: "), WITHIN_S, "the old leader stands by")
            assert booked(cluster) == before == [("node", 0)]


def place(kerf: KerfProcess, cluster: KerfCluster, name: str) -> str:
    """What went wrong, "" when it is bound: filter and bind as kube-scheduler calls them, which knows nothing of it."""
    found = cluster.pod(name)
    offered = kerf.post("filter", {"Pod": found, "NodeNames": ["node"]})
    if offered["Error"] or not offered["NodeNames"]:
        return offered["Error"] or "no room"
    binding = {"PodNamespace": "default", "PodName": name, "PodUID": found["metadata"]["uid"], "Node": "node"}
    return str(kerf.post("bind", binding)["Error"])


@pytest.mark.parametrize("arrives", ["during the outage", "when the GPU may have been given away"])
def test_a_lapse_that_nobody_takes_over_gives_nothing_away_that_may_come_yet(clusters: Clusters, arrives: str) -> None:
    """A Binding without an answer; then the API server is out of reach of all replicas for longer than the lease."""
    with HoldingProxy(clusters.plane) as network:
        arguments = (
            *("--kubeconfig", str(network.kubeconfig(clusters.plane))),
            *("--set", "cluster.request_timeout_s=1"),
        )
        with service_mode(clusters, *arguments) as replicas:
            leader, cluster = replicas.leader(), replicas.cluster
            cluster.add_nodes(gpu_node("node", gpus=1))
            for name in ("early", "late"):
                cluster.submit(name, labels=ONE_GPU, scheduler_name="nobody")
            network.hold_bindings(1)
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(place, leader, cluster, "early")
                assert network.held.wait(WITHIN_S)
                network.cut = True
                assert "its outcome is unknown" in asked.result()
            wait_until(lambda: status(leader).startswith("standby: "), WITHIN_S, "the lease has lapsed")
            over = time.monotonic() + 2.0
            wait_until(
                lambda: time.monotonic() > over, WITHIN_S, "the outage goes on for longer than a round of settling"
            )
            if arrives == "during the outage":
                network.let_go()
                wait_until(lambda: network.statuses, WITHIN_S, "the late Binding is answered")
            network.cut = False
            leader = wait_until(lambda: [found for found in replicas.replicas if status(found) == "ok"], WITHIN_S, "")[
                0
            ]
            if arrives == "during the outage":
                assert place(leader, cluster, "late") != ""
            else:
                wait_until(lambda: place(leader, cluster, "late") == "", WITHIN_S, "the other pod gets the GPU")
            before = booked(cluster)
            network.let_go()
            wait_until(lambda: network.statuses, WITHIN_S, "the late Binding is answered")
            assert booked(cluster) == before == [("node", 0)]
            assert network.statuses == [201 if arrives == "during the outage" else 409]


def test_a_leader_that_was_paused_with_its_clock_binds_nothing(clusters: Clusters) -> None:
    """By its clock it leads. The pod was created after the successor's marks, and the watch tells nothing."""
    with HoldingProxy(clusters.plane) as network:
        arguments = ("--kubeconfig", str(network.kubeconfig(clusters.plane)))
        slow = ("--set", "leader_election.duration_s=20")  # renewed every 5 s
        with service_mode(clusters, *slow, of_the_first=arguments, module="tests.e2e.pauses") as replicas:
            leader, cluster = replicas.leader(), replicas.cluster
            assert leader is replicas.replicas[0]
            successor = replicas.other(leader)
            cluster.add_nodes(gpu_node("node", gpus=1))
            renewals = cluster.plane.request("GET", LEASE)["spec"]["renewTime"]
            wait_until(
                lambda: cluster.plane.request("GET", LEASE)["spec"]["renewTime"] != renewals,
                WITHIN_S,
                "the lease was renewed a moment ago",
            )
            network.mute()
            leader.process.pause()
            wait_until(lambda: status(successor) == "ok", WITHIN_S, "the other replica leads")
            for name in ("good", "late"):
                cluster.submit(name, labels=ONE_GPU, scheduler_name="nobody")
                if name == "good":
                    assert place(successor, cluster, name) == ""
            leader.process.signal(signal.SIGCONT)
            assert status(leader) == "ok", "so it looks"
            told = place(leader, cluster, "late")
            network.unmute()
            assert told
            assert booked(cluster) == [("node", 0)]
            wait_until(lambda: status(leader).startswith("standby: "), WITHIN_S, "it stands by")


def test_pods_that_cannot_be_marked_hold_nobody_up(clusters: Clusters) -> None:
    """Almost 256 KiB of annotations, or almost 1.5 MiB: and a late Binding for them fails all the same."""
    clusters.close()
    plane = clusters.plane
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml")
    cluster.add_nodes(gpu_node("node", gpus=1))
    full = {"theirs": "x" * (256 * 1024 - len("theirs"))}
    # What a Binding would replace: without it, there is room for the Binding where there is none for a mark.
    cluster.create(pod("full", labels=ONE_GPU, annotations=full, scheduler_name="nobody"))
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10", "args": ["y" * 1_400_000]}
    filled = {"kerf.dev/explanation": "e" * 2000}
    cluster.create(pod("large", labels=ONE_GPU, annotations=filled, scheduler_name="nobody", containers=[container]))
    _fill(plane, "large", 100_000, 240_000)
    late = {
        name: {
            "metadata": {
                "name": name,
                "resourceVersion": cluster.pod(name)["metadata"]["resourceVersion"],
                "annotations": {"kerf.dev/assigned-gpus": "0", "kerf.dev/explanation": ""},
            },
            "target": {"kind": "Node", "name": "node"},
        }
        for name in ("full", "large")
    }
    cluster.kerf.process.kill()
    clusters.restart_kerf()
    assert (cluster.kerf.metric("kerf_leader"), cluster.kerf.metric("kerf_pods_unmarkable_total")) == (1, 0)
    for name, binding in late.items():
        assert cluster.pod(name)["status"]["message"].startswith("Kerf "), "it was changed in the smaller way"
        with pytest.raises(ApiError, match="409"):
            plane.request("POST", f"/api/v1/namespaces/default/pods/{name}/binding", binding)
    for name in late:
        _change(plane, name, {"theirs": None, "filler": None})  # at its full size a pod can't even be deleted


def _fill(plane: ControlPlane, name: str, low: int, high: int) -> None:
    """Give a pod the longest annotation that the API server takes."""
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _change(plane, name, {"filler": "x" * middle})
            low = middle
        except ApiError as error:
            assert "request is too large" in str(error)
            high = middle


def _change(plane: ControlPlane, name: str, annotations: dict[str, str | None]) -> None:
    body = {"metadata": {"annotations": annotations}}
    plane.request("PATCH", f"/api/v1/namespaces/default/pods/{name}", body, "application/merge-patch+json")


@pytest.mark.skipif(not own_hostname("kerf-test"), reason="needs a host name of its own for each kube-scheduler")
def test_a_sidecar_decides_while_its_scheduler_leads(clusters: Clusters) -> None:
    clusters.close()
    plane = clusters.plane
    election = {"leaderElect": True, "leaseDuration": "10s", "renewDeadline": "8s", "retryPeriod": "500ms"}
    sidecars: list[KerfProcess] = []
    schedulers: list[Process] = []
    with ExitStack() as stack:
        for host in ("host-a", "host-b"):
            arguments = ("--set", "leader_election.mode=scheduler", "--set", f"leader_election.identity={host}")
            kerf = KerfProcess(plane, f"kerf-{host}", *arguments, ready_path="/syncz")
            stack.callback(kerf.process.stop, grace_s=0)
            sidecars.append(kerf)
            scheduler = plane.start_scheduler(
                SCHEDULER_CONFIG / "decisive.yaml",
                name=f"scheduler-{host}",
                extender_url=kerf.url,
                leader_election=election,
                hostname=host,
            )
            stack.callback(scheduler.stop)
            schedulers.append(scheduler)
            if host == "host-a":
                wait_until(lambda: status(sidecars[0]) == "ok", WITHIN_S, "the first scheduler leads")
        cluster = KerfCluster(plane, sidecars[0])
        stack.callback(lambda: _clean(cluster, sidecars))
        cluster.add_nodes(gpu_node("node", gpus=4))
        cluster.submit("first", labels=ONE_GPU)
        cluster.bound("first")
        assert status(sidecars[1]).startswith("standby: lease kube-system/kube-scheduler is held by host-a_")

        schedulers[0].signal(signal.SIGKILL)
        for number in range(3):
            cluster.submit(f"next-{number}", labels=ONE_GPU)
        for number in range(3):
            wait_until(
                lambda name=f"next-{number}": "nodeName" in cluster.pod(name)["spec"],  # type: ignore[misc]
                WITHIN_S,
                "the other pair takes over",
            )
        assert status(sidecars[1]) == "ok"
        assert "kube-scheduler" in status(sidecars[0])
        assert sorted(booked(cluster)) == [("node", 0), ("node", 1), ("node", 2), ("node", 3)]
