"""The queue's metrics of skipped pods."""

from extender.metrics.queueing import queue_metrics
from extender.planning.quotas import Quotas
from tests.queueing.rigs import GATES, Rig


def skipped(rig: Rig) -> dict[str, float]:
    """Pods skipped, by the label `why`."""
    [family] = [family for family in queue_metrics(rig.queue) if family.name == "kerf_queue_skipped"]
    return {sample.labels["why"]: sample.value for sample in family.samples}


def test_skipped_pods_are_counted_by_reason() -> None:
    rig = Rig(quotas=Quotas({"ns": 4.0}))
    rig.node("n", 4)
    nothing = dict.fromkeys(("gang", "gate", "quota", "reservation", "room", "request", "claim", "refused", "api"), 0.0)
    assert skipped(rig) == nothing
    rig.pod("large", 5)
    rig.pod("odd", 1, policy="tarot")
    rig.pod("alone", 1, gang="g", gang_size="2")
    rig.pod("held", 1)
    rig.api.pods["held"]["spec"]["schedulingGates"] = [*GATES, {"name": "example.com/other"}]
    rig.pod("runs", 4)
    rig.told("held")
    rig.round()
    rig.pod("more", 2)
    rig.round()
    assert skipped(rig) == nothing | {"quota": 2, "request": 1, "gang": 1, "gate": 1}
