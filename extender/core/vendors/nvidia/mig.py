"""MIG: GPUs cut into devices, and what part of its GPU's compute each has.

A GPU is cut into seven compute slices, some models into four (NVIDIA, "MIG User Guide", supported profiles). Profiles:
NVIDIA/mig-parted `deployments/systemd/config-default.yaml` 1400787, with a dot for the plus sign as k8s-device-plugin
writes them.
"""

import re
from typing import Final

from extender.core.vendors.nvidia.labels import STRATEGY
from extender.core.vendors.nvidia.products import canonical
from extender.core.vendors.vendor import Partitions, Slices

_PROFILES: Final = (
    *("1g.5gb", "1g.5gb.me", "1g.6gb", "1g.6gb.me", "1g.10gb", "1g.10gb.me", "1g.12gb", "1g.12gb.me", "1g.18gb"),
    *("1g.18gb.me", "1g.20gb", "1g.23gb", "1g.23gb.me", "1g.24gb", "1g.24gb-me", "1g.24gb.gfx", "1g.24gb.me"),
    *("1g.24gb.me.all", "1g.35gb", "1g.36gb", "1g.45gb", "1g.47gb", "2g.10gb", "2g.12gb", "2g.12gb.me", "2g.20gb"),
    *("2g.24gb", "2g.35gb", "2g.36gb", "2g.45gb", "2g.47gb", "2g.48gb", "2g.48gb-me", "2g.48gb.gfx", "2g.48gb.me.all"),
    *("3g.20gb", "3g.40gb", "3g.47gb", "3g.48gb", "3g.71gb", "3g.72gb", "3g.90gb", "3g.95gb", "4g.20gb", "4g.24gb"),
    *("4g.40gb", "4g.47gb", "4g.48gb", "4g.71gb", "4g.72gb", "4g.90gb", "4g.95gb", "4g.96gb", "4g.96gb.gfx"),
    *("7g.40gb", "7g.80gb", "7g.94gb", "7g.96gb", "7g.141gb", "7g.144gb", "7g.180gb", "7g.189gb"),
)
_PROFILE: Final = re.compile(r"(?:([1-7])c\.)?(([1-7])g\.[0-9]+gb)")
"""Before it a part of an instance's compute may stand, as in `1c.3g.20gb`; engines come behind: `+me`, `.me`, `-me`."""
_NUM_SLICES: Final = 7
_NUM_OF_FEW: Final = 4
_MODELS_OF_FEW: Final = re.compile("a30x?|rtx-pro-6000-.*")
_PROFILES_OF_FEW: Final = frozenset({"1g.6gb", "2g.12gb", "4g.24gb", "2g.48gb", "4g.96gb"})
"""That only they have: `1g.24gb` is a quarter of an RTX PRO 6000, and a seventh of a GPU of 96 GB of another kind."""


def _slices(profile: str, model: str) -> Slices:
    """One slice where the profile can't be read; no more than there are."""
    found = _PROFILE.match(profile)
    few = (found is not None and found[2] in _PROFILES_OF_FEW) or _MODELS_OF_FEW.fullmatch(canonical(model))
    of = _NUM_OF_FEW if few else _NUM_SLICES
    return Slices(min(int(found[1] or found[3]), of) if found else 1, of)


MIG: Final = Partitions(
    resource_prefix="nvidia.com/mig-",
    profiles=_PROFILES,
    slices=_slices,
    strategy_label=STRATEGY,
    in_product=re.compile(r"-mig-([1-7]g\.[0-9]+gb)"),
)
