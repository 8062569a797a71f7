"""The device plugin of docs/examples, installed as a package, and plugins that fail."""

import logging
import sys
from pathlib import Path

import pytest

from extender.core.resources.nodes import NodeReading
from extender.core.resources.requests import RequestError
from extender.kube import objects
from extender.plugins import pod_resources
from extender.plugins.pod_resources import _managed_resources
from extender.plugins.protocol import DevicePlugin, UnreadableError
from extender.plugins.registry import _Guarded, _load_installed
from tests.api.services import running
from tests.docs.example import broken
from tests.ledger.builders import node_manifest, node_object, pod_manifest, pod_object


@pytest.mark.usefixtures("example")
def test_pods_are_placed_and_bound_by_an_installed_plugin() -> None:
    slots = node_manifest("slots")
    slots["metadata"]["annotations"] = {"example.com/gpus": "GPU-a=16384,GPU-b=16384"}
    with running([slots, node_manifest("native", 4)]) as kerf:

        def nodes_for(name: str, mib: int) -> list[str]:
            pod = kerf.create(pod_manifest(name, mib, resource="example.com/gpu-mib"))
            names: list[str] = kerf.filter(pod, ["slots", "native"])["NodeNames"] or []
            assert not names or kerf.bind(pod, "slots") == ""
            return names

        for name, mib, gpu in (("p1", 12000, "GPU-a"), ("p2", 12000, "GPU-b"), ("p3", 4000, "GPU-a")):
            assert nodes_for(name, mib) == ["slots"]
            assert kerf.cluster.pod("default", name)["metadata"]["annotations"]["example.com/gpu"] == gpu
        assert nodes_for("p4", 8000) == []
    assert "example.com/gpu-mib" in _managed_resources(), "kube-scheduler calls Kerf for it"
    assert pod_resources.is_managed(pod_object("p", 1, resource="example.com/gpu-mib").spec)


def test_without_the_package_its_resource_is_unknown() -> None:
    assert "example.com/gpu-mib" not in _managed_resources()


class Broken(DevicePlugin):
    """Fails at everything."""

    name = "broken"
    resources = ("broken.com/gpu",)

    def owns(self, node: objects.Node) -> bool:
        raise RuntimeError("a bug")

    offer = request = concerns = holding = handover = owns  # type: ignore[assignment]


def test_a_plugin_that_fails_affects_its_own_pods_and_nodes_only(caplog: pytest.LogCaptureFixture) -> None:
    plugin = _Guarded(Broken())
    own, other = pod_object("p", 1, resource="broken.com/gpu"), pod_object("p", 1)
    assert not plugin.owns(node_object("n", 1))
    assert not plugin.concerns(own)
    assert plugin.request(other) is None
    with pytest.raises(RequestError, match="RuntimeError"):
        plugin.request(own)
    with pytest.raises(UnreadableError):
        plugin.offer(node_object("n", 1), NodeReading())
    with pytest.raises(UnreadableError):
        plugin.holding(own)
    with pytest.raises(RequestError):
        plugin.handover(own, (), node_object("n", 1), 0.0)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("extender.plugins.nvidia.gpushare:gone", "has no attribute 'gone'"),
        ("no_such_package:Plugin", "kerf-broken"),
        ("kerf_broken:stop", "SystemExit: 3"),
        ("extender.plugins.nvidia.gpushare:INDEX", "extender.plugins.protocol.DevicePlugin"),
        ("extender.plugins.nvidia.gpushare:GpuShare", "'gpushare'"),
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
