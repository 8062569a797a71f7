"""Series as Prometheus and exporters write them: the few labels that tell which GPU of which node a sample is of."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

HOST_LABELS: Final = (
    "Hostname",
    "hostname",
    "exported_hostname",
    "node",
    "nodename",
    "kubernetes_node",
    "node_name",
    "exported_node",
)
"""Labels that may name the node, in the order in which they are believed. dcgm-exporter writes `Hostname`, and
`hostname` since d5e5f510 (render_metrics.go); the others come from relabelling."""

_MAX_CHARS: Final = 253
"""Of a name: no node's, pod's or GPU's has more."""
_DEVICE_LABELS: Final = ("gpu", "id", "UUID", "uuid", "GPU_I_ID", "GPU_I_PROFILE")
POD_LABELS: Final = ("exported_namespace", "exported_pod", "namespace", "pod")
"""Labels of the pod that has a GPU. A scrape with honorLabels false renames the exporter's own to `exported_*`; `pod`
is then the exporter's, as it is wherever a series tells of no pod."""
LABELS: Final = (*_DEVICE_LABELS, *HOST_LABELS, "instance")
"""Labels that queries keep, where a source has them."""
MODEL_LABEL: Final = "modelName"
"""Kept where there are MIG instances: a product's slices are what their part of it is counted in."""


class Labels(msgspec.Struct, gc=False, frozen=True):
    """The labels of one series that matter; "" for those it lacks."""

    gpu: str = ""
    id: str = ""
    upper_uuid: str = msgspec.field(name="UUID", default="")
    uuid: str = ""
    model_name: str = msgspec.field(name="modelName", default="")
    instance_id: str = msgspec.field(name="GPU_I_ID", default="")
    profile: str = msgspec.field(name="GPU_I_PROFILE", default="")
    upper_hostname: str = msgspec.field(name="Hostname", default="")
    hostname: str = ""
    exported_hostname: str = ""
    node: str = ""
    nodename: str = ""
    kubernetes_node: str = ""
    node_name: str = ""
    exported_node: str = ""
    instance: str = ""
    exported_namespace: str = ""
    exported_pod: str = ""
    namespace: str = ""
    pod: str = ""

    def pod_key(self) -> tuple[str, str]:
        """Namespace and name of the pod, if these are one's."""
        key = (self.exported_namespace, self.exported_pod) if self.exported_pod else (self.namespace, self.pod)
        return key[0][:_MAX_CHARS], key[1][:_MAX_CHARS]

    def of_gpu(self) -> "Labels":
        """Without the pod's."""
        return msgspec.structs.replace(self, exported_namespace="", exported_pod="", namespace="", pod="")

    def host(self) -> "Host":
        """What is said of the node."""
        names = (
            self.upper_hostname,
            self.hostname,
            self.exported_hostname,
            self.node,
            self.nodename,
            self.kubernetes_node,
            self.node_name,
            self.exported_node,
        )
        return Host(tuple(dict.fromkeys(name[:_MAX_CHARS] for name in names if name)), self.instance[:_MAX_CHARS])

    def device(self) -> "Device":
        """What is said of the GPU."""
        index = self.gpu or self.id
        return Device(
            int(index) if index.isascii() and index.isdigit() and len(index) <= 3 else -1,
            (self.upper_uuid or self.uuid)[:_MAX_CHARS],
        )


class Host(NamedTuple):
    """Names that a node goes by in its series."""

    names: tuple[str, ...]
    """In the order in which they are believed."""
    instance: str
    """Address that was scraped, "10.0.0.1:9400"."""


class Device(NamedTuple):
    """One GPU as its series name it."""

    number: int
    """Index on its node, -1 when it has none."""
    uuid: str


def labels_of(mapping: Mapping[str, str]) -> Labels:
    """The labels of a scraped sample."""
    wanted = (*LABELS, MODEL_LABEL, *POD_LABELS)
    return msgspec.convert({name: mapping[name] for name in wanted if name in mapping}, Labels)
