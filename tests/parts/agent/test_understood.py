"""What the agent writes is what Kerf reads."""

from extender.parts.agent.inventory import Gpu as AgentGpu
from extender.parts.agent.pods import _ASSIGNED_GPUS, _ASSIGNED_UUIDS
from extender.parts.agent.report import _NODE_REPORT, _replicas_of, _text_of
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_UUIDS, REPORT, _read_report


def test_what_the_agent_writes_is_understood() -> None:
    inventory = [AgentGpu(0, "GPU-a", "NVIDIA A100-SXM4-40GB", 40960, True, 0, 1), AgentGpu(1, "GPU-b", healthy=False)]
    ids = ["GPU-a::0", "GPU-a::1", "GPU-b::0"]
    replicas = _replicas_of({"nvidia.com/gpu": ids, "nvidia.com/mig-1g.5gb": ["MIG-1"]})
    text = _text_of(inventory, {"u": {"main": {"nvidia.com/gpu": ("GPU-a::0", "GPU-b")}}}, ["nvidia.com/gpu"], replicas)
    report = _read_report({_NODE_REPORT: text})
    assert _NODE_REPORT == REPORT
    assert (_ASSIGNED_GPUS, _ASSIGNED_UUIDS) == (ASSIGNED_GPUS, ASSIGNED_UUIDS)
    assert [(gpu.uuid, gpu.model, gpu.memory_mib, gpu.healthy, gpu.numa, gpu.link) for gpu in report.gpus] == [
        ("GPU-a", "NVIDIA A100-SXM4-40GB", 40960, True, 0, 1),
        ("GPU-b", "", 0, False, -1, -1),
    ]
    assert report.given == {"u": ("GPU-a", "GPU-b")}
    assert report.steers == {"nvidia.com/gpu"}
    assert report.replicas == {"nvidia.com/gpu": 2}
