"""The device plugin of docs/examples: installed as a package, found by its entry point, and used through the verbs."""

import logging
import sys
from pathlib import Path

import pytest

from extender.core.resources.nodes import NodeReading
from extender.core.resources.requests import RequestError
from extender.kube import objects
from extender.kube.memory import Manifest
from extender.plugins import pod_resources
from extender.plugins.pod_resources import _managed_resources
from extender.plugins.protocol import DevicePlugin, UnreadableError
from extender.plugins.registry import _Guarded, _load_installed
from tests.api.services import running
from tests.docs.example import broken
from tests.ledger.builders import node_manifest, node_object, pod_manifest, pod_object


def slots_node(name: str, *gpus: str) -> Manifest:
    manifest = node_manifest(name)
    manifest["metadata"]["annotations"] = {"example.com/gpus": ",".join(gpus)}
    return manifest


def slots_pod(name: str, mib: int) -> Manifest:
    return pod_manifest(name, mib, resource="example.com/gpu-mib")


@pytest.mark.usefixtures("example")
def test_pods_are_placed_and_bound_by_an_installed_plugin() -> None:
    nodes = [slots_node("slots", "GPU-a=16384", "GPU-b=16384"), node_manifest("native", 4)]
    with running(nodes) as kerf:
        given = []
        for name, mib in (("p1", 12000), ("p2", 12000), ("p3", 4000)):
            pod = kerf.create(slots_pod(name, mib))
            assert kerf.filter(pod, ["slots", "native"])["NodeNames"] == ["slots"]
            assert kerf.bind(pod, "slots") == ""
            given.append(kerf.cluster.pod("default", name)["metadata"]["annotations"]["example.com/gpu"])
        assert given == ["GPU-a", "GPU-b", "GPU-a"]

        full = kerf.filter(kerf.create(slots_pod("p4", 8000)), ["slots", "native"])
        assert not full["NodeNames"]


@pytest.mark.usefixtures("example")
def test_its_resource_is_one_that_kube_scheduler_has_to_ask_for() -> None:
    assert "example.com/gpu-mib" in _managed_resources()
    assert pod_resources.is_managed(pod_object("p", 1, resource="example.com/gpu-mib").spec)


def test_without_the_package_nobody_knows_of_it() -> None:
    assert "example.com/gpu-mib" not in _managed_resources()


class Broken(DevicePlugin):
    """Fails at everything, on nodes and pods of all kinds."""

    name = "broken"
    resources = ("broken.com/gpu",)

    def owns(self, node: objects.Node) -> bool:
        raise RuntimeError("a bug")

    offer = request = concerns = holding = handover = owns  # type: ignore[assignment]


def test_a_plugin_that_fails_costs_only_its_own(caplog: pytest.LogCaptureFixture) -> None:
    plugin = _Guarded(Broken())
    own, other = pod_object("p", 1, resource="broken.com/gpu"), pod_object("p", 1)

    assert not plugin.owns(node_object("n", 1))
    assert not plugin.concerns(own)
    assert plugin.request(other) is None
    with pytest.raises(RequestError, match="device plugin broken has failed: RuntimeError"):
        plugin.request(own)
    with pytest.raises(UnreadableError, match="device plugin broken has failed"):
        plugin.offer(node_object("n", 1), NodeReading())
    with pytest.raises(UnreadableError):
        plugin.holding(own)
    with pytest.raises(RequestError):
        plugin.handover(own, (), node_object("n", 1), 0.0)
    assert [record.message for record in caplog.records] == [
        "device plugin broken has failed; this is logged only once"
    ]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("extender.plugins.nvidia.gpushare:gone", "has no attribute 'gone'"),
        ("no_such_package:Plugin", "of package kerf-broken could not be loaded: ModuleNotFoundError: No module named"),
        ("kerf_broken:stop", "SystemExit: 3"),
        ("extender.plugins.nvidia.gpushare:INDEX", "it is not an extender.plugins.protocol.DevicePlugin with a name"),
        ("extender.plugins.nvidia.gpushare:GpuShare", "there is another device plugin 'gpushare'"),
    ],
)
def test_a_plugin_that_can_not_be_loaded_is_left_out(
    value: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken(tmp_path, f"[kerf.plugins]\nbad = {value}", "import sys; sys.exit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "kerf_broken", raising=False)
    with caplog.at_level(logging.ERROR):
        assert _load_installed() == []
    assert caplog.text.count("device plugin bad") == 1
    assert why in caplog.text
