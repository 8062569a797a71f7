"""Keeping a pod that asks for a model or an amount of memory to nodes of which the GPUs will do.

kube-scheduler knows none of these words, and takes any node that has as many GPUs where the one nominated is not to be
had. What it does know is the label by which nodes tell the product of their GPUs; the API server lets that be asked of
a pod as long as its gate is shut.
"""

from dataclasses import dataclass, field
from typing import Any

from extender.core.evaluations import Memo
from extender.core.fit.checks import could_fit
from extender.core.resources.requests import GpuRequest, PodRequest
from extender.core.vendors.registry import VENDORS
from extender.kube.objects import Pod
from extender.planning.plans import PlanPod
from extender.queueing.node_view import NodeBook
from extender.scheduling.placer import Placer


@dataclass(eq=False)
class Products:
    """What pods are kept to as their gates are opened."""

    placer: Placer
    nodes: NodeBook
    _memo: Memo = field(default_factory=Memo, init=False)

    def kept_to(self, pod: Pod, planned: PlanPod, node: str) -> dict[str, Any]:
        """What keeps a pod planned on a node to its gang's domain and to products that will do, as parts of its spec.

        One that has an affinity of its own keeps that, and is kept to the product of its node.
        """
        selector = self.nodes.domain_of(node, planned.topology)
        label = VENDORS[planned.gpus.vendor].product_label if planned.gpus is not None else ""
        own, affinity = self.nodes.labels_of(node).get(label, ""), {}
        if planned.gpus is not None and own and is_picky(planned.gpus):
            products = self._products(planned.gpus)
            if pod.spec.affinity is not None:
                selector = {**selector, label: own}
            elif products:
                affinity = {"affinity": _affinity(label, products)}
        return ({"nodeSelector": selector} if selector else {}) | affinity

    def _products(self, request: GpuRequest) -> list[str]:
        """Products of the nodes that would do if they were free, none where one of those tells none."""
        cluster = self.placer.snapshot()
        found = self._memo.evaluate(cluster, request, self.placer.policy_of(PodRequest(request)))
        will_do = could_fit(found.evaluation.reason)
        names = [cluster.node_names[row] for row in cluster.row_of.values() if will_do[row]]
        products = {self.nodes.labels_of(name).get(VENDORS[request.vendor].product_label, "") for name in names}
        return [] if "" in products else sorted(products)


def is_picky(request: GpuRequest) -> bool:
    """Whether not every GPU will do for a request."""
    patterns = request.include is not None or request.exclude is not None
    return patterns or bool(request.memory_each_mib or request.memory_total_mib or request.uuids)


def _affinity(label: str, products: list[str]) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": label, "operator": "In", "values": products}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
