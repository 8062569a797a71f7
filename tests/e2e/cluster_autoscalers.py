"""Cluster Autoscaler on a control plane of the tests, where it is installed: its own program, with the provider that
makes plain objects of nodes ("kwok")."""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import yaml

from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import answers, clean_environment, free_port, start_process, wait_until
from tests.e2e.clusters import Manifest

NAME: Final = "cluster-autoscaler"

_GROUP: Final = "kerf.test/group"
"""Label of nodes: the node group that they are of."""
_CONFIG_MAPS: Final = "/api/v1/namespaces/default/configmaps"


class ClusterAutoscaler:
    """One that runs."""

    component = NAME
    """Who its events are from."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def nodes(self) -> list[str]:
        """The group of each node that it has made."""
        return sorted(node["metadata"]["labels"][_GROUP] for node in self._nodes())

    def pool_of(self, node: str) -> str:
        """The group that a node is of."""
        found = self._plane.request("GET", f"/api/v1/nodes/{node}")
        return str(found["metadata"]["labels"].get(_GROUP, ""))

    def remove_nodes(self) -> None:
        """As if their machines were gone."""
        self._plane.request("DELETE", f"/api/v1/nodes?labelSelector={_GROUP}")
        wait_until(lambda: not self._nodes(), 60.0, "its nodes are gone")

    def _nodes(self) -> list[Manifest]:
        found: list[Manifest] = self._plane.request("GET", f"/api/v1/nodes?labelSelector={_GROUP}")["items"]
        return found


@contextlib.contextmanager
def cluster_autoscaler(plane: ControlPlane, directory: Path, groups: Sequence[Manifest]) -> Iterator[ClusterAutoscaler]:
    """One whose groups are empty and make nodes like these. Raises FileNotFoundError where it is not installed."""
    executable = shutil.which(NAME)
    if executable is None:
        raise FileNotFoundError(f"there is no {NAME} in PATH")
    config = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "configmap",
        "nodegroups": {"fromNodeLabelKey": _GROUP},
        "nodes": {"skipTaint": True},
        "configmap": {"name": "kwok-provider-templates"},
    }
    templates = {"apiVersion": "v1", "kind": "List", "items": [_template(node) for node in groups]}
    for name, key, content in (("config", "config", config), ("templates", "templates", templates)):
        body = {"metadata": {"name": f"kwok-provider-{name}"}, "data": {key: yaml.safe_dump(content)}}
        plane.request("POST", _CONFIG_MAPS, body)
    address, kubeconfig = f"127.0.0.1:{free_port()}", plane.kubeconfig()
    command: list[str | Path] = [
        *(executable, f"--kubeconfig={kubeconfig}", f"--address={address}", "--cloud-provider=kwok"),
        *("--namespace=default", "--leader-elect=false", "--scan-interval=1s", "--scale-down-enabled=false", "--v=4"),
    ]
    environment = clean_environment(KUBECONFIG=str(kubeconfig), KWOK_PROVIDER_MODE="local", POD_NAMESPACE="default")
    process = start_process(NAME, command, directory / f"{NAME}.log", f"http://{address}", environment)
    try:
        process.wait_ready(lambda: answers(f"http://{address}/health-check"))
        yield ClusterAutoscaler(plane)
    finally:
        process.stop()


def _template(node: Manifest) -> Manifest:
    """What new nodes of a group are made from."""
    metadata = node["metadata"]
    labels = metadata["labels"] | {_GROUP: metadata["name"]}
    return {**node, "metadata": {**metadata, "labels": labels, "annotations": {"kerf.test/template": "true"}}}
