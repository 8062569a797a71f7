"""Pods in place of those that can't be read."""

from typing import Final, TypeVar

import msgspec

from extender.core.vendors.registry import DEFAULT
from extender.kube.decoding import Outline

T = TypeVar("T")

_MORE_THAN_ANY: Final = 2**30


def stand_in(pod: Outline, kind: type[T]) -> T:
    """What is counted with in place of a pod that can't be read: it asks for more GPUs than any node has.

    So no GPU of its node is given away, or, where it has no node, it is taken for one that asks for GPUs.
    """
    metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "resourceVersion": pod.resource_version}
    container = {"resources": {"requests": {DEFAULT.resource: str(_MORE_THAN_ANY)}}}
    spec = {"nodeName": pod.node or None, "containers": [container]}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": pod.phase}}, kind)
