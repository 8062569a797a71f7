"""Devices that Kerf allocates, as users see them: why a pod waits, who has what, and what is free."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from extender.cli.main import app
from tests.controlplane.objects import pod
from tests.e2e.claims import DRIVER, add_slice, device_classes, make_claim, selecting
from tests.e2e.clusters import KerfCluster, Manifest
from tests.e2e.fixtures import Clusters
from tests.e2e.test_queueing import skipped
from tests.parts.dra.test_end_to_end import GPU_CLASS, gpus, open_owner, publish, submit_gated

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


def ask(cluster: KerfCluster, name: str, device_class: str, *conditions: str) -> None:
    """A gated pod with a claim of its own, under conditions in CEL."""
    make_claim(cluster, name, device_class, *conditions)
    submit_gated(cluster, name, name)


def test_a_pod_that_waits_says_which_condition_no_device_meets_and_which_comes_nearest(owner: KerfCluster) -> None:
    publish(owner, "a", gpus(2))
    ask(owner, "wants", GPU_CLASS, f"{MODEL} == 'H200'")
    lacks = f"request gpu: no device meets {MODEL} == 'H200'; nearest: gpu-0 of node a"
    skipped(owner, "wants", lacks)
    explained = owner.kerf.get("/explain/pod/default/wants")
    assert explained["verdict"] == "unasked"
    assert lacks in explained["queue"]
    assert explained["lacks"].startswith(lacks)
    (fix,) = explained["wouldFit"]
    assert f"{MODEL} == 'H200'" in fix["text"]


def test_commands_show_devices_and_claims(owner: KerfCluster, tmp_path: Path) -> None:
    publish_partitions(owner, "a")
    ask(owner, "small", MIG_CLASS, f"device.attributes['{DRIVER}'].profile == '1g.10gb'")
    owner.bound("small")
    ask(owner, "wants", GPU_CLASS, f"{MODEL} == 'H200'")
    skipped(owner, "wants", "no device meets")
    told = kerf(owner, "top", "--once").output
    assert "2g.20gb, 1g.10gb" in told
    told = kerf(owner, "top", "a").output
    assert "pool a of gpu.nvidia.com" in told
    assert "claim default/small of default/small" in told
    told = kerf(owner, "explain", "default/wants").output
    assert f"request gpu: no device meets {MODEL} == 'H200'" in told
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
    assert "2 matching, 0 free (node a)" in next(iter(answer["reasons"]))


def _half() -> Manifest:
    selector = {"cel": {"expression": f"device.attributes['{DRIVER}'].profile == '2g.20gb'"}}
    return {"deviceClassName": MIG_CLASS, "selectors": [selector]}


def kerf(cluster: KerfCluster, *arguments: str) -> Result:
    """A command that asks the cluster's Kerf, on a wide terminal."""
    return CliRunner().invoke(app, [*arguments], env={"KERF_SERVER_URL": cluster.kerf.url, "COLUMNS": "250"})
