"""Karpenter on a control plane of the tests: its own program, as its Go module has it, with the provider that makes
plain objects of nodes ("kwok")."""

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.controlplane.binaries import cached, go_build, module_folder
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import answers, clean_environment, free_port, start_process, wait_until
from tests.e2e.clusters import Manifest

_VERSION: Final = "v1.13.0"
_POOLS: Final = "/apis/karpenter.sh/v1/nodepools"
_CLAIMS: Final = "/apis/karpenter.sh/v1/nodeclaims"
_POOL: Final = "karpenter.sh/nodepool"
_CLASS: Final = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}


class Karpenter:
    """One that runs."""

    component = "karpenter"
    """Who its events are from."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def nodes(self) -> list[str]:
        """The pool of each node that it has made, or is about to."""
        claims = self._plane.request("GET", _CLAIMS)["items"]
        return sorted(claim["metadata"]["labels"][_POOL] for claim in claims)

    def pool_of(self, node: str) -> str:
        """The pool that a node is of."""
        found = self._plane.request("GET", f"/api/v1/nodes/{node}")
        return str(found["metadata"]["labels"].get(_POOL, ""))

    def remove_nodes(self) -> None:
        """Have all that it has made removed; their pods have to be gone."""
        self._plane.request("DELETE", _CLAIMS)
        wait_until(lambda: not self._plane.request("GET", _CLAIMS)["items"], 60.0, "Karpenter's nodes are gone")
        selected = f"/api/v1/nodes?labelSelector={_POOL}"
        wait_until(lambda: not self._plane.request("GET", selected)["items"], 60.0, "their objects are gone")


@contextlib.contextmanager
def karpenter(plane: ControlPlane, directory: Path, pools: Sequence[Manifest]) -> Iterator[Karpenter]:
    """One whose pools are empty, and make nodes like these; the smaller, the cheaper. Raises BuildError."""
    built = cached(f"karpenter-{_VERSION}", _build)
    for definition in sorted(built.glob("*.yaml")):
        plane.apply(definition)
    for path in (_POOLS, _CLAIMS, "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"):
        wait_until(lambda path=path: plane.exists(path), 30.0, f"{path} is served")  # type: ignore[misc]
    types = directory / "types.json"
    types.write_text(json.dumps([_instance_type(node) for node in pools]))
    plane.apply({"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": _CLASS["kind"], "metadata": {"name": "default"}})
    plane.apply(*map(_pool, pools))
    health = free_port()
    environment = clean_environment(
        KUBECONFIG=str(plane.kubeconfig()),
        DISABLE_LEADER_ELECTION="true",
        HEALTH_PROBE_PORT=str(health),
        METRICS_PORT="0",
        INSTANCE_TYPES_FILE_PATH=str(types),
        LOG_LEVEL="debug",
    )
    log = directory / "karpenter.log"
    process = start_process("karpenter", [built / "kwok"], log, f"http://127.0.0.1:{health}", environment)
    try:
        process.wait_ready(lambda: answers(f"{process.url}/readyz"))
        yield Karpenter(plane)
    finally:
        process.stop()


def _build(into: Path) -> None:
    sources = module_folder(f"sigs.k8s.io/karpenter@{_VERSION}")
    go_build(sources, into, ["./kwok"])
    for folder in (sources / "kwok" / "apis" / "crds", sources / "pkg" / "apis" / "crds"):
        for definition in folder.glob("*.yaml"):
            shutil.copyfile(definition, into / definition.name)


def _type_name(node: Manifest) -> str:
    return f"{node['metadata']['name']}.large"


def _instance_type(node: Manifest) -> dict[str, Any]:
    """A machine with what a node has."""
    resources = node["status"]["allocatable"]
    place = {"topology.kubernetes.io/zone": "zone-a", "karpenter.sh/capacity-type": "on-demand"}
    requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in place.items()]
    offering = {"Price": float(resources["nvidia.com/gpu"]), "Requirements": requirements}
    systems = {"architecture": "amd64", "operatingSystems": ["linux"]}
    return {"name": _type_name(node), "offerings": [offering], "resources": resources, **systems}


def _pool(node: Manifest) -> Manifest:
    """A NodePool of such machines alone, whose nodes have the node's labels of GPU Feature Discovery."""
    metadata = node["metadata"]
    labels = {key: value for key, value in metadata["labels"].items() if key.startswith("nvidia.com/")}
    machine = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [_type_name(node)]}
    spec = {"nodeClassRef": _CLASS, "requirements": [machine], "expireAfter": "Never"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": metadata["name"]},
        "spec": {
            "template": {"metadata": {"labels": labels}, "spec": spec},
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"},
        },
    }
