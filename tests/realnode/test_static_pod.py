"""The static pod as its kubelet starts it: what it asks for names, in the host's network."""

import copy

import pytest
import yaml

from tests.controlplane.kerf import ROOT
from tests.realnode import Node, settings

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e]

MANIFEST = yaml.safe_load((ROOT / "manifests" / "static-pod" / "kerf.yaml").read_text())
_SANDBOXES = "/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes"


def test_g12_in_the_hosts_network_it_asks_the_clusters_dns(node: Node) -> None:
    """`dnsPolicy` as shipped: without it the kubelet would hand on what the host has, which knows no Service."""
    pod = copy.deepcopy(MANIFEST)
    assert pod["spec"]["hostNetwork"]
    pod["metadata"] = {"name": "static", "namespace": "default"}
    (container,) = pod["spec"]["containers"]
    # The tests' own program in Kerf's place, and no file of a control plane's host.
    pod["spec"]["containers"] = [{"name": container["name"], "image": settings.PAUSE}]
    del pod["spec"]["volumes"], pod["spec"]["priorityClassName"]
    node.run(pod)
    text = node.inside("sh", "-c", f"cat {_SANDBOXES}/*/resolv.conf")
    kubelet = settings.kubelet("", "")
    for address in kubelet["clusterDNS"]:
        assert f"nameserver {address}" in text
