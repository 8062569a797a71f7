"""What all contracts have in common: the shapes they read into, and how garbage is read."""

import re
from dataclasses import dataclass
from typing import Final

from extender.core.clusters import WHOLE_MILLI
from extender.core.quantities import parse_quantity
from extender.core.requests import RequestError, Resources

MAX_CHARS: Final = 64 * 1024
"""Longer annotations are not looked at: no plugin writes such."""

_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,10}")


class FormatError(ValueError):
    """A value that its plugin would not have written."""


@dataclass(frozen=True, slots=True)
class RegisteredGpu:
    """One GPU of a node as its plugin registers it."""

    index: int
    memory_mib: int
    uuid: str = ""
    product: str = ""
    healthy: bool = True
    numa: int = -1
    """-1: not known."""
    max_holders: int = 0
    """How many shares the plugin hands out of it at most, 0 for no bound."""


@dataclass(frozen=True, slots=True)
class Register:
    """What a plugin registers on its node."""

    gpus: tuple[RegisteredGpu, ...] = ()
    """In order of their indices."""
    withheld: int = 0
    """GPUs of unknown index that the kubelet does not offer, unhealthy ones that are known not counted."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuShare:
    """What is held of one GPU."""

    milli: int
    """Compute, in thousandths; 0 by memory alone, 1000 a whole GPU and all its memory."""
    memory_mib: int
    uuid: str = ""
    """"" where the contract names GPUs by index."""
    index: int = -1
    """-1 where the contract names GPUs by UUID."""


@dataclass(frozen=True, slots=True)
class PodShares:
    """What a bound pod holds according to one contract."""

    shares: tuple[GpuShare, ...] = ()
    unknown: int = 0
    """GPUs of which somebody holds something, nobody knows which: each counts as taken as a whole."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """What a pod asks by a plugin's own resources."""

    count: int
    whole: bool = False
    """Whole GPUs, and not parts of them."""
    milli: int = 0
    """Compute of each part in thousandths of a GPU, 0 where memory alone is asked."""
    memory_each_mib: int = 0
    memory_each_percent: int = 0
    """Memory of each GPU in percent of what it has, where no size is asked."""


@dataclass(frozen=True, slots=True)
class AssignedGpu:
    """One GPU that a pod gets, as its plugin knows it."""

    index: int
    uuid: str
    memory_mib: int
    """All its memory, as registered."""
    given_milli: int = WHOLE_MILLI
    given_mib: int = 0
    """What the pod is given of it, where that is less than the whole."""


@dataclass(frozen=True, slots=True)
class ContainerResources:
    """A container's requests, limits standing in for what is not requested; in the order of the pod."""

    resources: Resources
    init: bool = False


def asked_number(container: ContainerResources, *names: str) -> int | None:
    """A whole number asked by the first of the resources that the container names, None when by none.

    Raises RequestError.
    """
    for name in names:
        text = container.resources.get(name)
        if text is None:
            continue
        try:
            quantity = parse_quantity(str(text))
        except ValueError as error:
            raise RequestError(f'{name}: "{shorten(str(text))}" is {error}; write a whole number') from None
        if quantity.denominator != 1 or not 0 <= quantity < 2**31:
            raise RequestError(f'{name}: "{shorten(str(text))}" is out of range; write a whole number')
        return int(quantity)
    return None


def whole_number(text: str, what: str) -> int:
    """A decimal number of at most ten digits. Raises FormatError; int() would take signs, blanks and any script."""
    if not _WHOLE_NUMBER.fullmatch(text):
        raise FormatError(f"{what} {shorten(text)!r} is no whole number")
    return int(text)


def bounded(text: str) -> str:
    """The text, if it is short enough to be looked at. Raises FormatError."""
    if len(text) > MAX_CHARS:
        raise FormatError(f"{len(text)} characters are more than any plugin writes")
    return text


def shorten(text: str) -> str:
    """Somebody else's text, short enough for a log line."""
    return text if len(text) <= 80 else text[:77] + "..."
