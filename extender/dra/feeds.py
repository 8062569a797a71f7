"""Which objects of `resource.k8s.io` are mirrored."""

from typing import Any, Final

from extender.dra.objects import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from extender.kube.watches.feeds import Feed

_API: Final = "/apis/resource.k8s.io/v1"
_RULES: Final = f"{_API}/devicetaintrules"
CLAIMS: Final = Feed("claims", f"{_API}/resourceclaims", ResourceClaim, served_at=_API)
SLICES: Final = Feed("slices", f"{_API}/resourceslices", ResourceSlice, served_at=_API)
CLASSES: Final = Feed("device classes", f"{_API}/deviceclasses", DeviceClass, served_at=_API)
RULES: Final = Feed("device taint rules", _RULES, DeviceTaintRule, served_at=f"{_RULES}?limit=1")
"""From 1.37 on."""
TO_ALLOCATE: Final[tuple[Feed[Any], ...]] = (SLICES, CLAIMS, CLASSES)
"""Without all of these nothing is allocated."""
