"""MIG devices: what part of its GPU's compute each has.

A GPU is cut into seven compute slices, some models into four (NVIDIA, "MIG User Guide", supported profiles). A device
may be given to several pods at once, by time slices: then GPU Feature Discovery tells to how many, and the device
plugin may call it `.shared`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from extender.core.resources.gpu_models import canonical_name
from extender.core.resources.nodes import COUNT_LABEL, MIG_RESOURCE_PREFIX, MIG_STRATEGY_LABEL, PRODUCT_LABEL

_PROFILE: Final = re.compile(r"(?:([1-7])c\.)?(([1-7])g\.[0-9]+gb)")
"""Before it a part of an instance's compute may stand, as in `1c.3g.20gb`; engines come behind: `+me`, `.me`, `-me`."""
_IN_PRODUCT: Final = re.compile(r"-mig-([1-7]g\.[0-9]+gb)")
_SHARED: Final = ".shared"
_SINGLE: Final = "single"
_MAX_DIGITS: Final = 7
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


@dataclass(frozen=True, slots=True)
class Cutting:
    """How the GPUs of a node are cut and shared, as its labels tell."""

    replicas: Mapping[str, int] = field(default_factory=dict)
    """Pods that a device of a profile is given to, by profile without `.shared`."""
    num_gpus: int = 0
    """GPUs of the node, cut ones included; 0 where that is not told."""
    profile: str = ""
    """Of all its devices, where they go by the name of whole GPUs; "" where GPUs are GPUs."""

    def num_holders(self, profile: str) -> int:
        """Pods that a device, by the name of its resource, is given to at once."""
        return self.replicas.get(profile.removesuffix(_SHARED), 1)


def read_cutting(labels: Mapping[str, str], offered: Iterable[tuple[str, int]]) -> Cutting:
    """What a node's labels tell of the devices that it offers, by profile."""
    replicas: dict[str, int] = {}
    for resource, units in offered:
        profile = resource.removesuffix(_SHARED)
        prefix = f"{MIG_RESOURCE_PREFIX}{profile}"
        told, devices = _number(labels, f"{prefix}.replicas"), _number(labels, f"{prefix}.count")
        if told <= 1 and devices and resource.endswith(_SHARED):
            told = -(-units // devices)
        replicas[profile] = max(told, 1)
    if labels.get(MIG_STRATEGY_LABEL) == _SINGLE:
        found = _IN_PRODUCT.search(labels.get(PRODUCT_LABEL, "").lower())
        return Cutting(replicas, 0, found[1] if found else "")
    return Cutting(replicas, _number(labels, COUNT_LABEL))


def _number(labels: Mapping[str, str], key: str) -> int:
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS else 0
