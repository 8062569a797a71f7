"""Which devices do for a request, whoever has them now."""

from collections.abc import Sequence

from extender.core.dra.asks import DeviceAsk, Fault, Toleration
from extender.core.dra.consumption import consumption_of
from extender.core.dra.devices import Amount, Device, Taint

Match = tuple[tuple[str, Amount], ...] | None | Fault
"""What a request takes of a device's capacities, None where the device does not do; or why that can't be told."""


def match_of(device: Device, ask: DeviceAsk) -> Match:
    """Whether a device does, in the order in which kube-scheduler asks: class, selectors, capacity."""
    try:
        if not all(selector.matches(device) for selector in ask.selectors):
            return None
        return consumption_of(device, ask.capacity)
    except Fault as fault:
        return fault


def tolerates(tolerations: Sequence[Toleration], taints: Sequence[Taint]) -> bool:
    """Whether all taints that keep claims off a device are put up with."""
    return all(
        any(_tolerates(toleration, taint) for toleration in tolerations)
        for taint in taints
        if taint.effect in ("NoSchedule", "NoExecute")
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"
