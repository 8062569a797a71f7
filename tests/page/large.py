"""A demo of 5,000 nodes with 8 GPUs each, half of them booked: `python -m tests.page.large demo --port N`."""

import sys
from collections.abc import Iterable, Iterator

from extender.api.app import create_app
from extender.cli.logs import configure_logs
from extender.demo.metrics import SampleFeed
from extender.kube.memory import Manifest, MemoryCluster
from extender.plugins.kerf import ASSIGNED_GPUS
from extender.server.run import run
from extender.settings.load import load_settings
from tests.nvidia import COUNT_LABEL, GPU_RESOURCE, MEMORY_LABEL, PRODUCT_LABEL

NUM_NODES = 5_000


def large_cluster() -> Iterator[Manifest]:
    """The nodes, and a pod with four GPUs on each."""
    for number in range(NUM_NODES):
        labels = {PRODUCT_LABEL: "NVIDIA-H100-80GB-HBM3", COUNT_LABEL: "8", MEMORY_LABEL: "81559"}
        allocatable = {"cpu": "192", "memory": "2048Gi", "pods": "110", GPU_RESOURCE: "8"}
        yield {
            "kind": "Node",
            "metadata": {"name": f"n-{number}", "labels": labels},
            "status": {"allocatable": allocatable},
        }
        container = {"name": "main", "resources": {"limits": {GPU_RESOURCE: "4"}}}
        metadata = {"name": f"job-{number}", "namespace": "default", "annotations": {ASSIGNED_GPUS: "0,1,2,3"}}
        yield {
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"nodeName": f"n-{number}", "containers": [container]},
            "status": {"phase": "Running"},
        }


def serve(nodes_and_pods: Iterable[Manifest], port: int) -> None:
    """Serve a cluster in memory until told to stop."""
    flags = {"server.port": port, "telemetry.interval_s": 15, "decisions.reservation_ttl_s": 600}
    settings = load_settings(flags=flags)
    configure_logs(settings.log)
    cluster = MemoryCluster(nodes_and_pods)
    run(create_app(settings, cluster, feed=SampleFeed(cluster)), settings)


if __name__ == "__main__":
    serve(large_cluster(), int(sys.argv[-1]))
