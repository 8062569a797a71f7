"""What people see of devices that Kerf allocates: why a pod waits, who has what, and what is free."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from extender.cli.main import app
from tests.controlplane.objects import cpu_node, pod
from tests.controlplane.processes import wait_until
from tests.e2e.claims import API, DRIVER, add_slice, device_classes, make_claim, selecting
from tests.e2e.clusters import WITHIN_S, KerfCluster, Manifest
from tests.e2e.fixtures import Clusters
from tests.e2e.test_queueing import skipped
from tests.parts.dra.test_end_to_end import GPU_CLASS, OWNED, gpus, open_owner, publish, submit, submit_gated

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

MIG_CLASS = "mig.example.com"
MODEL = f"device.attributes['{DRIVER}'].productName"


@pytest.fixture
def owner(clusters: Clusters) -> Iterator[KerfCluster]:
    """An empty cluster with two device classes, and Kerf with the queue, which may allocate."""
    with with_classes(clusters) as cluster:
        yield cluster


@contextlib.contextmanager
def with_classes(clusters: Clusters) -> Iterator[KerfCluster]:
    kinds = {GPU_CLASS: "gpu", MIG_CLASS: "mig"}
    specs = {name: selecting(f"device.attributes['{DRIVER}'].type == '{kind}'") for name, kind in kinds.items()}
    with device_classes(open_owner(clusters), specs) as cluster:
        yield cluster


def partitions(node: str) -> list[Manifest]:
    """A GPU with two halves and four quarters that share its memory slices, in the two slices of its pool."""
    attributes = {"type": {"string": "mig"}, "parentUUID": {"string": "GPU-0"}}
    devices = [gpus(1)[0] | _consuming(range(4))]
    for profile, width, memory in (("2g.20gb", 2, "20Gi"), ("1g.10gb", 1, "10Gi")):
        devices += [
            {
                "name": f"gpu-0-mig-{width}-{at}",
                "attributes": attributes | {"profile": {"string": profile}},
                "capacity": {"memory": {"value": memory}},
                **_consuming(range(at, at + width)),
            }
            for at in range(0, 4, width)
        ]
    return devices


def _consuming(places: range) -> Manifest:
    counters = {f"memory-slice-{place}": {"value": "1"} for place in places}
    return {"consumesCounters": [{"counterSet": "gpu-0-counter-set", "counters": counters}]}


def publish_partitions(cluster: KerfCluster, node: str) -> None:
    sets = [{"name": "gpu-0-counter-set", "counters": {f"memory-slice-{at}": {"value": "1"} for at in range(4)}}]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 2}
    publish(cluster, node, partitions(node), pool=pool)
    add_slice(cluster, node, DRIVER, [], pool=pool, sharedCounters=sets)


def ask(cluster: KerfCluster, name: str, device_class: str, *conditions: str, count: int = 1) -> None:
    """A gated pod with a claim of its own, under conditions in CEL."""
    make_claim(cluster, name, device_class, *conditions, count=count)
    submit_gated(cluster, name, name)


def test_a_pod_that_waits_says_which_condition_no_device_meets_and_which_comes_nearest(owner: KerfCluster) -> None:
    publish(owner, "a", gpus(2))
    ask(owner, "wants", GPU_CLASS, f"{MODEL} == 'H200'")
    told = (
        f"needs 1 device by ResourceClaim, request gpu: no device meets {MODEL} == 'H200'; "
        "nearest: gpu-0 of node a, which meets 1 of 2 conditions"
    )
    skipped(owner, "wants", told)
    explained = owner.kerf.get("/explain/pod/default/wants")
    assert explained["verdict"] == "unasked"
    assert explained["queue"] == told
    assert explained["lacks"] == told.partition(", ")[2]
    (fix,) = explained["wouldFit"]
    assert fix["text"] == f"without the condition {MODEL} == 'H200' for request gpu"


def test_a_pod_whose_devices_others_have_says_how_many_do_and_are_free(owner: KerfCluster) -> None:
    publish(owner, "a", gpus(3))
    submit(owner, "two", 2)
    owner.bound("two")
    submit(owner, "waits", 2)
    skipped(owner, "waits", "request gpu: needs 2 devices of one node; 3 would do, 1 free (node a)")
    (first, *_) = owner.kerf.get("/explain/pod/default/waits")["wouldFit"]
    assert first["text"] == "1 more device free on node a"
    assert first["who"].startswith("claim default/two of default/two has gpu-")


def test_partitions_are_told_with_their_claims_and_what_is_left_of_the_gpu(owner: KerfCluster) -> None:
    publish_partitions(owner, "a")
    ask(owner, "small", MIG_CLASS, f"device.attributes['{DRIVER}'].profile == '1g.10gb'")
    owner.bound("small")
    wait_until(lambda: _uses(owner, "a") == [("default/small", ["default/small"])], WITHIN_S, "it is told")
    told = owner.kerf.get("/nodes/a")
    (gpu,) = told["gpuDetails"]
    # A quarter of its memory; compute that nobody tells is taken to be the same part.
    assert (gpu["freeMilli"], gpu["freeMemoryMiB"]) == (750, 30720)
    assert (gpu["freeDevices"], told["devices"]["free"]) == ("2g.20gb, 1g.10gb", "2g.20gb, 1g.10gb")
    assert told["devices"]["pools"][0]["owner"] == "kerf"
    ask(owner, "large", MIG_CLASS, f"device.attributes['{DRIVER}'].profile == '2g.20gb'", count=2)
    skipped(owner, "large", "request gpu: needs 2 devices of one node; 2 would do, 1 free (node a)")


def test_commands_tell_of_devices_and_claims(owner: KerfCluster, tmp_path: Path) -> None:
    publish_partitions(owner, "a")
    ask(owner, "small", MIG_CLASS, f"device.attributes['{DRIVER}'].profile == '1g.10gb'")
    owner.bound("small")
    ask(owner, "wants", GPU_CLASS, f"{MODEL} == 'H200'")
    skipped(owner, "wants", "no device meets")
    told = kerf(owner, "top", "--once").output
    assert "DEVICES FREE" in told
    assert "2g.20gb, 1g.10gb" in told
    told = kerf(owner, "top", "a").output
    assert "pool a of gpu.nvidia.com: 7 devices, allocated by Kerf" in told
    assert "claim default/small of default/small" in told
    told = kerf(owner, "explain", "default/wants").output
    assert "it waits in Kerf's queue: needs 1 device by ResourceClaim" in told
    assert f"nearest: request gpu: no device meets {MODEL} == 'H200'" in told
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "half"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": _half()}]}}},
    }
    asking = pod("train", resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "half"}])
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump_all([asking, template]))
    found = kerf(owner, "what-if", "-f", str(file), "--replicas", "3", "-o", "json")
    answer = json.loads(found.output)
    assert (answer["pods"], answer["placed"]) == (3, 1)  # one half is left beside the quarter
    assert "request gpu: needs 1 device of one node; 2 would do, 0 free (node a)" in next(iter(answer["reasons"]))


def _half() -> Manifest:
    selector = {"cel": {"expression": f"device.attributes['{DRIVER}'].profile == '2g.20gb'"}}
    return {"deviceClassName": MIG_CLASS, "selectors": [selector]}


def kerf(cluster: KerfCluster, *arguments: str) -> Result:
    """A command that asks the cluster's Kerf, on a wide terminal."""
    return CliRunner().invoke(app, [*arguments], env={"KERF_SERVER_URL": cluster.kerf.url, "COLUMNS": "250"})


def _uses(cluster: KerfCluster, node: str) -> list[tuple[str, list[str]]]:
    found: list[dict[str, Any]] = cluster.kerf.get(f"/nodes/{node}")["deviceUses"]
    return [(use["claim"], use["pods"]) for use in found]


def test_a_pool_that_is_kerfs_only_in_part_is_told_with_its_fault(owner: KerfCluster) -> None:
    owner.add_nodes(cpu_node("a"))
    devices = [gpus(2)[0] | {"taints": [OWNED]}, gpus(2)[1]]
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 1}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "a-devices"},
        "spec": {"driver": DRIVER, "nodeName": "a", "pool": pool, "devices": devices},
    }
    owner.plane.request("POST", f"{API}/resourceslices", body)
    wait_until(lambda: owner.kerf.metric("kerf_dra_pool_faults") == 1, WITHIN_S, "the fault is counted")
    (told,) = owner.kerf.get("/nodes/a")["devices"]["pools"]
    assert (told["owner"], told["fault"]) == ("nobody", "only some of its devices have the taint kerf.dev/owned")


def test_devices_and_claims_are_counted(owner: KerfCluster) -> None:
    before = owner.kerf.metric("kerf_dra_claims_allocated_total")
    publish(owner, "a", gpus(2))
    submit(owner, "one")
    owner.bound("one")
    metrics = owner.kerf.get("/metrics")
    assert f'kerf_dra_devices{{driver="{DRIVER}"}} 2.0' in metrics
    assert f'kerf_dra_devices_taken{{driver="{DRIVER}"}} 1.0' in metrics
    assert owner.kerf.metric("kerf_dra_claims_allocated_total") == before + 1
    (item,) = owner.kerf.get("/nodes")["items"]
    assert (item["devices"]["taken"], item["devices"]["free"]) == (1, "GPU")
