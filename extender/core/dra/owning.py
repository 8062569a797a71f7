"""How a pool of devices is given to Kerf: by a taint on each of its devices.

kube-scheduler allocates no device whose taint the claim does not tolerate, and binds pods whose claims have been
allocated already. So the taint keeps everybody out but whoever allocates beforehand: Kerf.
"""

from collections.abc import Iterable
from typing import Final

from extender.core.dra.devices import Taint

__all__ = ["HELD", "KEY", "OWNED", "Taint", "owns"]

KEY: Final = "kerf.dev/owned"
"""Of the taint, whatever its value."""
OWNED: Final = Taint(KEY, "kerf", "NoSchedule")
"""Kerf allocates the device, and nobody else does."""
HELD: Final = Taint(KEY, "held", "NoSchedule")
"""Nobody allocates the device: it is on its way from kube-scheduler to Kerf, or back."""


def owns(taints: Iterable[Taint]) -> bool:
    """Whether Kerf may allocate a device with these taints: one of its own says so, and none says otherwise."""
    of_kerf = [taint for taint in taints if taint.key == KEY]
    return bool(of_kerf) and all(taint == OWNED for taint in of_kerf)
