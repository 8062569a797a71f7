"""Ownership of a pool of devices, by a taint on each of its devices.

kube-scheduler allocates no device with an untolerated taint, but binds pods whose claims are already allocated. So only
Kerf, which allocates beforehand, can use tainted devices.
"""

from collections.abc import Iterable
from typing import Final

from extender.core.dra.devices import Taint

__all__ = ["HELD", "KEY", "OWNED", "Taint", "owns"]

KEY: Final = "kerf.dev/owned"
"""Key of the taint, with either value."""
OWNED: Final = Taint(KEY, "kerf", "NoSchedule")
"""Only Kerf allocates the device."""
HELD: Final = Taint(KEY, "held", "NoSchedule")
"""No one allocates the device: it is being handed over between kube-scheduler and Kerf."""


def owns(taints: Iterable[Taint]) -> bool:
    """Whether Kerf may allocate a device: it has the taint OWNED, and no other taint of that key."""
    of_kerf = [taint for taint in taints if taint.key == KEY]
    return bool(of_kerf) and all(taint == OWNED for taint in of_kerf)
