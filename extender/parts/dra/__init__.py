"""Devices of DRA drivers that Kerf allocates to ResourceClaims: docs/parts/dra.md.

kube-scheduler allocates nothing in the same pools (`extender.core.dra.owning`). A pod that names claims is planned once
all of them are read (`whose`); what it got is held in the ledger, written on the claims (`writer`), and only then is
the pod let go (`keeper`). What a pod does not come to use is taken back (`reclaimer`).
"""

from typing import Final

from extender.core.faces import Face

FACE: Final = Face(installs={"dra": f"{__name__}.install_command:give"}, checks=f"{__name__}.install_checks:checks")
