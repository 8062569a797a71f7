"""MIG devices: what part of its GPU's compute each has.

A GPU is cut into seven compute slices, some models into four (NVIDIA, "MIG User Guide", supported profiles).
"""

import re
from typing import Final, NamedTuple

from extender.core.resources.gpu_models import canonical_name

_PROFILE: Final = re.compile(r"(?:([1-7])c\.)?(([1-7])g\.[0-9]+gb)")
"""Before it a part of an instance's compute may stand, as in `1c.3g.20gb`; engines come behind: `+me`, `.me`, `-me`."""
_NUM_SLICES: Final = 7
_NUM_OF_FEW: Final = 4
_MODELS_OF_FEW: Final = re.compile("a30x?|rtx-pro-6000-.*")
_PROFILES_OF_FEW: Final = frozenset({"1g.6gb", "2g.12gb", "4g.24gb", "2g.48gb", "4g.96gb"})
"""That only they have: `1g.24gb` is a quarter of an RTX PRO 6000, and a seventh of a GPU of 96 GB of another kind."""


class Slices(NamedTuple):
    """Compute slices of a device, and of its GPU."""

    num: int
    of: int


def mig_slices(profile: str, model: str = "") -> Slices:
    """What a MIG device has by its profile, as in `1g.5gb`, and its GPU's model where that is known, by any of its
    names. One slice where the profile can't be read; no more than there are."""
    found = _PROFILE.match(profile)
    few = (found is not None and found[2] in _PROFILES_OF_FEW) or _MODELS_OF_FEW.fullmatch(canonical_name(model))
    of = _NUM_OF_FEW if few else _NUM_SLICES
    return Slices(min(int(found[1] or found[3]), of) if found else 1, of)
