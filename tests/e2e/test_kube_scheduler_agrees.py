"""A plan and kube-scheduler agree on which nodes have room for a pod: other resources, host ports, rules about other
pods, and pods that are being resized. Drawn pods, the real kube-scheduler, no extender."""

import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from extender.planning.plan_state import PlanState
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.queueing.sources import Source, batch_of
from tests.controlplane.objects import cpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.fixtures import Clusters

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

NAME = "agrees"
SCHEDULER = f"""
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {{qps: 5000, burst: 5000}}
profiles: [{{schedulerName: {NAME}}}]
"""
ZONE, HOSTNAME = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
NAMESPACES, APPS = ("default", "agrees"), ("a", "b", "c")
NUM_PODS = 90
MERGE = "application/merge-patch+json"
Manifest = dict[str, Any]


@pytest.fixture
def plane(clusters: Clusters) -> Iterator[ControlPlane]:
    """Without anybody else's nodes, pods and kube-scheduler."""
    clusters.close()
    plane = clusters.plane
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACES[1]}})
    scheduler = plane.start_scheduler(SCHEDULER, name="agrees")
    yield plane
    scheduler.stop()
    for namespace in NAMESPACES:
        for found in plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]:
            delete(plane, namespace, found["metadata"]["name"])
    for found in plane.request("GET", "/api/v1/nodes")["items"]:
        plane.request("DELETE", f"/api/v1/nodes/{found['metadata']['name']}")


def nodes(draw: random.Random) -> list[Manifest]:
    made = []
    for number in range(12):
        labels = {ZONE: f"z{number % 3}"} if number < 10 else {}
        allocatable = {"rdma/hca": str(draw.randrange(3)), "ephemeral-storage": draw.choice(["10Gi", "40Gi"])}
        if number % 2:
            allocatable["hugepages-2Mi"] = "64Mi"
        if number % 5 == 0:
            allocatable["pods"] = "3"
        node = cpu_node(f"n{number:02}", cpu="4", memory="8Gi", labels=labels, allocatable=allocatable)
        if number in (3, 7):
            node["spec"] = {"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}
        made.append(node)
    return made


def selector(draw: random.Random) -> Manifest:
    match draw.randrange(5):
        case 0:
            return {"matchExpressions": [{"key": "app", "operator": "In", "values": draw.sample(APPS, 2)}]}
        case 1:
            return {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [draw.choice(APPS)]}]}
        case 2:
            return {"matchExpressions": [{"key": "odd", "operator": draw.choice(["Exists", "DoesNotExist"])}]}
    return {"matchLabels": {"app": draw.choice(APPS)}}


def term(draw: random.Random) -> Manifest:
    made: Manifest = {"topologyKey": draw.choice([ZONE, HOSTNAME]), "labelSelector": selector(draw)}
    match draw.randrange(6):
        case 0:
            made["namespaces"] = [draw.choice(NAMESPACES)]
        case 1:
            made["namespaceSelector"] = {}
        case 2:
            made[draw.choice(["matchLabelKeys", "mismatchLabelKeys"])] = ["odd"]
            made["labelSelector"] = {"matchLabels": {"app": draw.choice(APPS)}}  # which may not name that key, too
    return made


def spread(draw: random.Random) -> Manifest:
    made: Manifest = {"maxSkew": draw.randint(1, 2), "topologyKey": draw.choice([ZONE, ZONE, HOSTNAME])}
    made |= {"whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector(draw)}
    if draw.random() < 0.3:
        made["minDomains"] = draw.randint(2, 5)
    if draw.random() < 0.3:
        made["nodeAffinityPolicy"] = draw.choice(["Honor", "Ignore"])
    if draw.random() < 0.3:
        made["nodeTaintsPolicy"] = draw.choice(["Honor", "Ignore"])
    if draw.random() < 0.2:
        made |= {"matchLabelKeys": ["odd"], "labelSelector": {"matchLabels": {"app": draw.choice(APPS)}}}
    return made


def drawn(draw: random.Random, name: str) -> Manifest:
    """A pod that is kept from about half of the nodes by something."""
    labels = {"app": draw.choice(APPS)} | ({"odd": draw.choice("12")} if draw.random() < 0.4 else {})
    made = pod(
        name, namespace=draw.choice(NAMESPACES), labels=labels, scheduler_name=NAME, cpu=draw.choice(["100m", "1"])
    )
    spec = made["spec"]
    spec["schedulingGates"] = [{"name": "agrees/held"}]
    (container,) = spec["containers"]
    asked: dict[str, str] = {}
    if draw.random() < 0.3:
        asked |= {"rdma/hca": str(draw.randint(1, 2))}
    if draw.random() < 0.2:
        asked |= {"hugepages-2Mi": draw.choice(["16Mi", "48Mi"])}
    if draw.random() < 0.3:
        asked |= {"ephemeral-storage": draw.choice(["4Gi", "12Gi"])}
    if draw.random() < 0.03:
        asked |= {"nobody.has/it": "1"}
    container["resources"] |= {"limits": asked, "requests": container["resources"]["requests"] | asked}
    if draw.random() < 0.3:
        port = {"containerPort": 80, "hostPort": draw.choice([8080, 8081]), "protocol": draw.choice(["TCP", "UDP"])}
        if draw.random() < 0.4:
            port["hostIP"] = draw.choice(["10.0.0.1", "127.0.0.1"])
        container["ports"] = [port]
    affinity: Manifest = {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    if draw.random() < 0.25:
        affinity["podAffinity"] = {required: [term(draw) for _ in range(draw.randint(1, 2))]}
    if draw.random() < 0.25:
        affinity["podAntiAffinity"] = {required: [term(draw) for _ in range(draw.randint(1, 2))]}
    if draw.random() < 0.5:  # to one node, or to some: else a plan that allows too much is seldom caught
        values = [f"n{number:02}" for number in draw.sample(range(12), draw.choice([1, 1, 6]))]
        by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": values[:1]}]}
        by_label = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": values}]}
        terms = [by_name if len(values) == 1 else by_label]
        affinity["nodeAffinity"] = {required: {"nodeSelectorTerms": terms}}
    if affinity:
        spec["affinity"] = affinity
    if draw.random() < 0.3:
        found = {item["topologyKey"]: item for item in (spread(draw) for _ in range(draw.randint(1, 2)))}
        spec["topologySpreadConstraints"] = list(found.values())
    if draw.random() < 0.2:
        spec["tolerations"] = [{"key": "team", "operator": "Exists"}]
    return made


def planned(plane: ControlPlane, name: str) -> set[str]:
    """Nodes on which a plan would put a pod that waits, by what the API server has now."""
    source = Source(nodes=[decode_node(item) for item in plane.request("GET", "/api/v1/nodes")["items"]])
    for namespace in NAMESPACES:
        items = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        source.add(decode_pod(item) for item in items)
    view, batch, faults = batch_of(source, 0.0)
    assert not faults
    (position,) = [at for at, one in enumerate(batch) if one.key.endswith(f"/{name}")]
    assert view.unchecked(batch[position]) == ()
    return {view.cluster.node_names[row] for row in np.flatnonzero(PlanState(view, batch).fits(position))}


def decided(plane: ControlPlane, path: str) -> str:
    """Let a pod go; the node that kube-scheduler gives it, "" where it refuses it all."""
    plane.request("PATCH", path, {"spec": {"schedulingGates": None}}, MERGE)

    def told() -> Manifest | None:
        found: Manifest = plane.request("GET", path)
        conditions = found.get("status", {}).get("conditions", ())
        refused = any(item["type"] == "PodScheduled" and item.get("reason") == "Unschedulable" for item in conditions)
        return found if found["spec"].get("nodeName") or refused else None

    found = wait_until(told, 30.0, f"kube-scheduler has decided on {path}")
    assert found is not None
    return str(found["spec"].get("nodeName", ""))


def resize(plane: ControlPlane, path: str, cpu: str) -> None:
    """Have the pod's status say that it has other CPU than its spec."""
    requests = {"cpu": cpu, "memory": "64Mi"}
    told = {"name": "main", "image": "x", "imageID": "", "ready": True, "restartCount": 0}
    told |= {"allocatedResources": requests, "resources": {"requests": requests}}
    plane.request("PATCH", f"{path}/status", {"status": {"phase": "Running", "containerStatuses": [told]}}, MERGE)


def delete(plane: ControlPlane, namespace: str, name: str) -> None:
    plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")


def tried(plane: ControlPlane, draw: random.Random, number: int) -> tuple[str, str, str]:
    """Namespace and name of a drawn pod on which both agree, and its node, "" where it has none."""
    state, said = draw.getstate(), ""
    for attempt in range(3):  # a watch of kube-scheduler's may lag behind what was deleted or resized
        draw.setstate(state)
        manifest = drawn(draw, f"p{number:03}-{attempt}")
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", manifest)
        allowed = planned(plane, name)
        node = decided(plane, f"/api/v1/namespaces/{namespace}/pods/{name}")
        if node in allowed if node else not allowed:
            return namespace, name, node
        said = f"a plan allows {sorted(allowed)}, kube-scheduler {node or 'nothing'}: {manifest}"
        delete(plane, namespace, name)
        time.sleep(2.0)
    raise AssertionError(said)


@pytest.mark.parametrize("seed", [1, 2])
def test_kube_scheduler_takes_what_a_plan_allows_and_nothing_else(plane: ControlPlane, seed: int) -> None:
    draw = random.Random(seed)
    plane.apply(*nodes(draw))
    bound = refused = 0
    for number in range(NUM_PODS):
        namespace, name, node = tried(plane, draw, number)
        bound, refused = bound + bool(node), refused + (not node)
        if not node or draw.random() < 0.15:
            delete(plane, namespace, name)
        elif draw.random() < 0.2:
            resize(plane, f"/api/v1/namespaces/{namespace}/pods/{name}", draw.choice(["50m", "2"]))
    assert min(bound, refused) >= NUM_PODS // 5  # else it is no test of the other
