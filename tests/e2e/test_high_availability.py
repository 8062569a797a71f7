"""Several replicas on a real control plane: one decides, another takes over, and no GPU is given twice meanwhile."""

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.processes import Process, answers, own_hostname, wait_until
from tests.e2e.clusters import SCHEDULER_CONFIG, KerfCluster, KerfProcess, assigned_gpus
from tests.e2e.fixtures import Clusters
from tests.e2e.proxies import HoldingProxy, LeaderProxy

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

OWN = ("--set", "leader_election.mode=own")
PATIENT = (
    *("--set", "leader_election.duration_s=10"),
    *("--set", "leader_election.renew_deadline_s=8", "--set", "leader_election.retry_s=0.5"),
)
"""Who leads is not to change by itself on a machine that is busy."""
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
def service_mode(clusters: Clusters, *arguments: str, of_the_first: tuple[str, ...] = ()) -> Iterator[Replicas]:
    """Kerf in Service mode; the first replica leads, and may be started with arguments of its own."""
    clusters.close()
    plane = clusters.plane
    with ExitStack() as stack:
        number = time.monotonic_ns()
        first = KerfProcess(plane, f"kerf-first-{number}", *OWN, *arguments, *of_the_first)
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
        assert answer["Error"].startswith("this Kerf does not decide now: standby: lease kube-system/kerf is held by ")
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
            leader.process.signal(signal.SIGSTOP)
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
