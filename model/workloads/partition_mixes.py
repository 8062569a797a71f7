"""Requests for MIG partitions, drawn from mixes of profiles by seed, without or with departures.

The mixes are those of papers on packing partitions (uniform, small, large, both ends; such as M. Zambianco et al.,
arXiv:2511.18906); the weights are our own. `drawn` is a different mix for each seed.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import Floats, Longs
from extender.core.dra.asks import ClaimSpec, DeviceClaims, DeviceSpec, RequestSpec, Selector
from extender.core.dra.devices import Device
from model.workloads.nvidia import DRIVER, GpuKind, Profile

_MIXES: Final[dict[str, tuple[float, ...]]] = {
    # 1g, 1g+me, 1g with twice the memory, 2g, 3g, 4g, 7g
    "uniform": (1, 0, 1, 1, 1, 1, 1),
    "small": (6, 1, 4, 4, 2, 2, 1),
    "large": (1, 0, 2, 2, 4, 5, 6),
    "both-ends": (6, 0, 3, 1, 1, 3, 6),
    "inference": (7, 1, 3, 5, 3, 1, 0),
    "training": (0, 0, 1, 3, 6, 3, 7),
}
"""Weights of the profiles in the order of `GpuKind.profiles`, by number of requests."""
_DRAWN: Final = "drawn"
"""Name of the mix that is drawn for each seed from a Dirichlet distribution, so that a few profiles dominate."""
_CONCENTRATION: Final = (0.7, 0.05, 0.7, 0.7, 0.7, 0.7, 0.7)
"""Dirichlet concentration. The profile with media extensions is rare: each GPU has one."""
_SIGMA: Final = 1.0
"""Standard deviation of log durations: most requests are short, and long ones dominate the time."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in order of arrival."""

    profiles: Longs
    """(P,) index in `GpuKind.profiles`."""
    share: Floats
    """(P,) fraction of a GPU that each requests."""
    arrived: Floats
    """(P,) arrival time, in mean durations."""
    duration: Floats
    """(P,) duration, 1 on average; inf without departures."""

    @property
    def most_at_once(self) -> float:
        """Peak of the GPUs requested at once."""
        leaving = np.isfinite(self.duration)
        times = np.concatenate([self.arrived, (self.arrived + self.duration)[leaving]])
        asked = np.concatenate([self.share, -self.share[leaving]])
        return float(np.cumsum(asked[np.lexsort((asked, times))]).max(initial=0.0))


def names() -> tuple[str, ...]:
    """Return the names of all mixes."""
    return (*_MIXES, _DRAWN)


def _weights_of(mix: str, seed: int) -> Floats:
    """Return the (K,) probabilities of the profiles. Raises ValueError."""
    if mix == _DRAWN:
        return np.random.default_rng([seed, len(_MIXES)]).dirichlet(_CONCENTRATION)
    if mix not in _MIXES:
        raise ValueError(f"unknown mix {mix!r}: choose from {', '.join(names())}")
    weights = np.array(_MIXES[mix], float)
    drawn: Floats = weights / weights.sum()
    return drawn


def staying(kind: GpuKind, mix: str, num_gpus: int, load: float, seed: int) -> Requests:
    """Draw requests without departures, up to `load` times the GPUs."""
    rng, weights = np.random.default_rng([seed, 0, *kind.name.encode()]), _weights_of(mix, seed)
    share_of = np.array([profile.share for profile in kind.profiles])
    most = int(np.ceil(load * num_gpus / share_of.min())) + 1
    profiles = rng.choice(len(weights), most, p=weights)
    asked = np.cumsum(share_of[profiles])
    profiles = profiles[: int(np.searchsorted(asked, load * num_gpus)) + 1]
    forever = np.full(len(profiles), np.inf)
    return Requests(profiles, share_of[profiles], np.arange(len(profiles), dtype=float), forever)


def leaving(kind: GpuKind, mix: str, num_gpus: int, load: float, seed: int, num: int) -> Requests:
    """Draw `num` Poisson arrivals with departures, at `load` work per GPU."""
    rng, weights = np.random.default_rng([seed, 1, *kind.name.encode()]), _weights_of(mix, seed)
    share_of = np.array([profile.share for profile in kind.profiles])
    profiles = rng.choice(len(weights), num, p=weights)
    rate = load * num_gpus / float(weights @ share_of)
    return Requests(
        profiles,
        share_of[profiles],
        np.cumsum(rng.exponential(1 / rate, num)),
        rng.lognormal(-(_SIGMA**2) / 2, _SIGMA, num),
    )


def ask_for(profile: Profile) -> DeviceClaims:
    """Return the request of one ResourceClaim for a partition."""
    attributes = f"device.attributes['{DRIVER}']"
    selectors = (
        _equals(f"device.driver == '{DRIVER}' && {attributes}.type == 'mig'", "type", "mig"),
        _equals(f"{attributes}.profile == '{profile.name}'", "profile", profile.name),
    )
    return DeviceClaims((ClaimSpec((RequestSpec("partition", (DeviceSpec("partition", selectors),)),)),))


def _equals(expression: str, name: str, value: str) -> Selector:
    full = f"{DRIVER}/{name}"

    def matches(device: Device) -> bool:
        return device.id.driver == DRIVER and device.attributes.get(full) == value

    return Selector(expression, matches, frozenset({"driver", full}))
