"""Requests for MIG partitions, drawn from mixes of profiles by seed: in a row, or with times and departures.

The kinds of mix are those that papers on packing of partitions compare (uniform, small, large, both ends; such as
M. Zambianco et al., arXiv:2511.18906); the weights are our own. `drawn` is another mix for each seed.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import Floats, Longs
from extender.core.dra.asks import ClaimAsk, DeviceAsk, DevicesAsked, RequestAsk, Selector
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
"""Weights of the profiles in the order of `GpuKind.profiles`, by requests."""
_DRAWN: Final = "drawn"
"""A mix of its own for each seed: Dirichlet, so that a few profiles are most of it."""
_CONCENTRATION: Final = (0.7, 0.05, 0.7, 0.7, 0.7, 0.7, 0.7)
"""Of media extensions there is one on each GPU: few ask for them."""
_SIGMA: Final = 1.0
"""Of the logarithm of durations: most are short, most of the time is long ones'."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in the order in which they come."""

    profiles: Longs
    """(P,) index in `GpuKind.profiles`."""
    share: Floats
    """(P,) the part of a GPU that each asks for."""
    arrived: Floats
    """(P,) when each comes, in mean durations."""
    duration: Floats
    """(P,) how long it stays, 1 on average; infinite for those that stay."""

    @property
    def most_at_once(self) -> float:
        """GPUs that those ask for who are there at once, at their most."""
        leaving = np.isfinite(self.duration)
        times = np.concatenate([self.arrived, (self.arrived + self.duration)[leaving]])
        asked = np.concatenate([self.share, -self.share[leaving]])
        return float(np.cumsum(asked[np.lexsort((asked, times))]).max(initial=0.0))


def names() -> tuple[str, ...]:
    """All mixes."""
    return (*_MIXES, _DRAWN)


def _weights_of(mix: str, seed: int) -> Floats:
    """(K,) probabilities of the profiles. Raises ValueError."""
    if mix == _DRAWN:
        return np.random.default_rng([seed, len(_MIXES)]).dirichlet(_CONCENTRATION)
    if mix not in _MIXES:
        raise ValueError(f"unknown mix {mix!r}: one of {', '.join(names())}")
    weights = np.array(_MIXES[mix], float)
    drawn: Floats = weights / weights.sum()
    return drawn


def staying(kind: GpuKind, mix: str, num_gpus: int, load: float, seed: int) -> Requests:
    """Requests that stay, until they have asked for `load` times the GPUs."""
    rng, weights = np.random.default_rng([seed, 0, *kind.name.encode()]), _weights_of(mix, seed)
    share_of = np.array([profile.share for profile in kind.profiles])
    most = int(np.ceil(load * num_gpus / share_of.min())) + 1
    profiles = rng.choice(len(weights), most, p=weights)
    asked = np.cumsum(share_of[profiles])
    profiles = profiles[: int(np.searchsorted(asked, load * num_gpus)) + 1]
    forever = np.full(len(profiles), np.inf)
    return Requests(profiles, share_of[profiles], np.arange(len(profiles), dtype=float), forever)


def leaving(kind: GpuKind, mix: str, num_gpus: int, load: float, seed: int, num: int) -> Requests:
    """`num` requests that come independently of each other and leave, at so much work for each GPU."""
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


def ask_for(profile: Profile) -> DevicesAsked:
    """One claim for a partition, as one asks the driver for it."""
    attributes = f"device.attributes['{DRIVER}']"
    selectors = (
        _equals(f"device.driver == '{DRIVER}' && {attributes}.type == 'mig'", "type", "mig"),
        _equals(f"{attributes}.profile == '{profile.name}'", "profile", profile.name),
    )
    return DevicesAsked((ClaimAsk((RequestAsk("partition", (DeviceAsk("partition", selectors),)),)),))


def _equals(expression: str, name: str, value: str) -> Selector:
    full = f"{DRIVER}/{name}"

    def matches(device: Device) -> bool:
        return device.id.driver == DRIVER and device.attributes.get(full) == value

    return Selector(expression, matches, frozenset({"driver", full}))
