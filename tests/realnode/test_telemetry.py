"""What exporters tell of a real node's GPUs meets what the kubelet really gave, where the plugin picks by itself."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane import ControlPlane, wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster
from tests.realnode import Node
from tests.realnode.agent import install
from tests.realnode.fixtures import kerf_places
from tests.realnode.test_agent import GPU, UUIDS, steering
from tests.telemetry import exporters
from tests.telemetry.servers import Server, serving

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e]

FOREIGN_MIB = 9000
LOADS = {"busy": 0.9, "calm": 0.2}


class Exporter:
    """dcgm-exporter on a node: what its GPUs do, with the pods that the kubelet says they are of."""

    def __init__(self) -> None:
        self.node: Node | None = None
        self.loads: dict[str, float] = {}
        """Of each of a pod's GPUs, by the pod's name."""
        self.foreign: dict[str, int] = {}
        """MiB in use of GPUs that no pod has, by UUID."""

    def page(self) -> str:
        """As it is scraped now."""
        assert self.node is not None
        owner_of = {
            device: (container, *name.split("/"))
            for name, containers in self.node.pod_resources().items()
            for container, devices in containers.items()
            for device in devices.get(GPU, ())
        }
        gpus = []
        for number, uuid in enumerate(UUIDS):
            owner = owner_of.get(uuid)
            load = self.loads.get(owner[2], 0.0) if owner else 0.0
            used_mib = int(20_000 * load) if owner else self.foreign.get(uuid, 0)
            gpus.append(exporters.Gpu(number, load, used_mib, uuid=uuid, pod=owner))  # type: ignore[arg-type]
        return exporters.dcgm_page(exporters.Node(self.node.name, gpus), exporters.V4_8)


@pytest.fixture(scope="module")
def exporter() -> Iterator[tuple[Exporter, Server]]:
    told = Exporter()
    with serving(lambda *_: (200, told.page().encode()) if told.node else (503, b"")) as server:
        yield told, server


@pytest.fixture(scope="module")
def cluster(node_plane: ControlPlane, exporter: tuple[Exporter, Server]) -> Iterator[KerfCluster]:
    install(node_plane)
    settings = {
        "telemetry.exporters": f"[{exporter[1].url}/metrics]", "telemetry.interval_s": 0.5,
        "decisions.policy": "live",
    }  # fmt: skip
    with kerf_places(node_plane, *(f"--set={key}={value}" for key, value in settings.items())) as cluster:
        yield cluster


def test_load_owners_and_unmanaged_use_are_of_the_gpus_that_containers_have(
    cluster: KerfCluster, node: Node, exporter: tuple[Exporter, Server]
) -> None:
    told, _ = exporter
    told.node, told.loads = node, LOADS

    def observed() -> dict[str, dict[str, Any]]:
        """What Kerf tells of each GPU, by UUID."""
        return dict(zip(UUIDS, cluster.kerf.get(f"/nodes/{node.name}")["gpuDetails"], strict=True))

    def loads() -> dict[str, float]:
        return {uuid: gpu.get("observed", {}).get("load") for uuid, gpu in observed().items()}

    with steering(cluster, node, steer=False) as own:
        for name in LOADS:
            cluster.submit(name, gpus=2)
        has = {name: own.seen(name) for name in LOADS}
        corrected = "kerf_assignments_corrected_total"
        wait_until(lambda: cluster.kerf.metric(corrected) > 0, WITHIN_S, "the plugin chose by itself, and that is told")
        nobodys = next(uuid for uuid in reversed(UUIDS) if uuid not in has["busy"] | has["calm"])
        told.foreign = {nobodys: FOREIGN_MIB}
        expected = {uuid: next((LOADS[name] for name in LOADS if uuid in has[name]), 0.0) for uuid in UUIDS}
        wait_until(lambda: loads() == expected, WITHIN_S, "each GPU's load is known")
        wait_until(lambda: observed()[nobodys]["unmanagedMiB"] > 0, WITHIN_S, "foreign use is seen")
        assert [uuid for uuid, gpu in observed().items() if gpu["unmanagedMiB"]] == [nobodys]
        wait_until(lambda: LOADS.keys() == owners(cluster).keys(), WITHIN_S, "both owners have samples")
        assert owners(cluster) == pytest.approx(LOADS)
        assert cluster.kerf.get("/telemetry")["gpusMatched"] == len(UUIDS)


def owners(cluster: KerfCluster) -> dict[str, float]:
    """Mean load of what each owner's pods used, by the name of the only pod."""
    found = cluster.kerf.get("/telemetry")["owners"]
    return {name.removeprefix("default/Pod/"): usage["load_mean"] for name, usage in found.items()}
