"""A device plugin that shares GPUs by memory, in formats of its own.

Its nodes say `example.com/gpus: GPU-a=16384,GPU-b=16384` (UUID and MiB of each GPU) in an annotation, pods ask for
`example.com/gpu-mib`, and a pod's annotation `example.com/gpu: GPU-a` tells the plugin which GPU to hand it.
"""

from collections.abc import Sequence

from extender.core.resources.gpu_models import UNKNOWN_MODEL
from extender.core.resources.nodes import Gpu, NodeOffer
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest
from extender.kube import objects
from extender.plugins.formats import asked_number, asks_any, containers_of, parts_offer, whole_number, with_conditions
from extender.plugins.holdings import UNKNOWN_GPU, Holding, Part
from extender.plugins.protocol import AssignedGpu, DevicePlugin, Handover, NodeReading

GPUS = "example.com/gpus"
GPU = "example.com/gpu"
MEMORY = "example.com/gpu-mib"


class Slots(DevicePlugin):
    """One GPU for each pod, of which it gets so much memory."""

    name = "slots"
    resources = (MEMORY,)
    written = frozenset({GPU})
    told = parts = True

    def owns(self, node: objects.Node) -> bool:
        return GPUS in (node.metadata.annotations or ())

    def offer(self, node: objects.Node, reading: NodeReading) -> NodeOffer | None:
        listed = [entry.partition("=") for entry in (node.metadata.annotations or {})[GPUS].split(",")]
        gpus = [Gpu(UNKNOWN_MODEL, whole_number(mib, GPUS), uuid) for uuid, _, mib in listed]
        return parts_offer(dict(enumerate(gpus)))

    def request(self, pod: objects.Pod) -> PodRequest | None:
        mib = _asked_mib(pod)
        return with_conditions(pod, GpuRequest(1, AskedUnit.PART, mib)) if mib else None

    def concerns(self, pod: objects.Pod) -> bool:
        return asks_any(pod.spec, self.resources)

    def holding(self, pod: objects.Pod) -> Holding | None:
        uuid = (pod.metadata.annotations or {}).get(GPU)
        return Holding(1, (Part(UNKNOWN_GPU, 0, _asked_mib(pod), uuid),)) if uuid else None

    def handover(
        self, pod: objects.Pod, gpus: Sequence[AssignedGpu], node: objects.Node, decided_at: float
    ) -> Handover:
        return Handover({GPU: gpus[0].uuid})


def _asked_mib(pod: objects.Pod) -> int:
    return sum(asked_number(container, MEMORY) or 0 for container in containers_of(pod.spec))
