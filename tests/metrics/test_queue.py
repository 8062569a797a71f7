"""What the queue's metrics say of pods that are passed over."""

from extender.metrics.queueing import queue_metrics
from extender.planning.quotas import Quotas
from tests.queueing.rigs import GATES, Rig


def skipped(rig: Rig) -> dict[str, float]:
    """Pods passed over, by the label `why`."""
    [family] = [family for family in queue_metrics(rig.queue) if family.name == "kerf_queue_skipped"]
    return {sample.labels["why"]: sample.value for sample in family.samples}


def test_pods_passed_over_are_counted_by_what_keeps_them() -> None:
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
