"""Where a pod that is moved may go by the model of its GPUs."""

import re
from dataclasses import replace

from extender.core.clusters import Cluster
from extender.core.resources.gpu_models import ModelPattern
from extender.planning.plans import PlanPod


def keeping_its_model(cluster: Cluster, row: int, pod: PlanPod) -> PlanPod:
    """A pod that runs on a node, as what it is placed elsewhere: one that names no model gets GPUs of a model that its
    node has, since on others its work might be much slower."""
    models = {cluster.models[model].name for model in cluster.gpu_model[row].tolist() if model >= 0} - {""}
    if pod.gpus is None or pod.gpus.include is not None or not models:
        return pod
    text = "|".join(f"^{re.escape(model)}$" for model in sorted(models)).replace("\\-", "-")
    return replace(pod, gpus=replace(pod.gpus, include=ModelPattern(text, re.compile(text))))
