"""Assembles the missing part: the periodic search, its metrics and its section of the page."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from extender.api.contributions import Contribution, Kernel
from extender.explain.processes import BusyError
from extender.explain.what_if import AnswersWhatIf
from extender.metrics.registry import gauge
from extender.parts.missing.search import MissingNodes
from extender.parts.missing.settings import MissingSettings

_EVERY_S: Final = 300.0
"""Least time between two searches: each takes a process and half a minute of a core."""


def build(kernel: Kernel, wanted: MissingSettings) -> Contribution:
    """A periodic what-if question, while this process leads and a pod has been pending for `wanted.after_s`."""
    base, unbound = kernel.base, kernel.unbound

    def oldest() -> float:
        return min((pod.created for pod in unbound.all()), default=float("inf"))

    def standby() -> str:
        return base.fence.standby() or base.mirror.fault()

    async def ask(question: bytes) -> bytes:
        answers = kernel.get(AnswersWhatIf)
        if answers is None:
            raise BusyError("no part answers what-if questions")
        return await answers.answer(question)

    missing = MissingNodes(ask, oldest, standby, after_s=wanted.after_s, every_s=_EVERY_S, clock=base.clock)
    return Contribution(work=[missing], metrics=lambda: _metrics(missing), shown={"missing": missing.to_json})


def _metrics(missing: MissingNodes) -> Iterator[Metric]:
    """The missing nodes by model and GPUs; no samples while none is known to be missing."""
    family = GaugeMetricFamily(
        "kerf_missing_nodes", "New nodes that would place all pending pods.", labels=["gpu_model", "gpus"]
    )
    known = missing.standing
    for (model, gpus), count in (known.nodes if known is not None else {}).items():
        family.add_metric([model, str(gpus)], count)
    yield family
    unplaced = known.unplaced if known is not None else 0
    yield gauge("kerf_missing_nodes_unplaced", "Pending pods that no new node would help.", unplaced)
