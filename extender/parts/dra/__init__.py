"""Allocates devices of DRA drivers to ResourceClaims: docs/parts/dra.md.

kube-scheduler allocates nothing in these pools (`extender.core.dra.owning`). `whose` decides which claims are Kerf's.
`keeper` holds a planned pod's devices in the ledger and writes them to its claims before the pod is released.
`reclaimer` deallocates devices that no pod uses.
"""

from typing import Final

from extender.core.faces import Face

FACE: Final = Face(installs={"dra": f"{__name__}.install_command:give"}, checks=f"{__name__}.install_checks:checks")
