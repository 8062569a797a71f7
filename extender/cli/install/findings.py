"""What looking at a cluster finds, and what all looks share."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from extender.kube.client import Transport
from extender.kube.decoding import Decoder
from extender.kube.watches.lists import Lister

KERF: Final = "app.kubernetes.io/name=kerf"
HELM: Final = "helm upgrade --install"
ANY: Final = Decoder(dict[str, Any])
_NUM_NAMED: Final = 5


class Verdict(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    """Works, less well than it could; or could not be looked at."""
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    told: str
    fix: str = ""
    """A command, or what to write where."""


async def listed(transport: Transport, path: str, selector: str = "", fields: str = "") -> list[dict[str, Any]]:
    """Objects at a path, those that a label selector and a field selector choose. Raises ClusterError,
    msgspec.DecodeError."""
    query = {name: value for name, value in (("labelSelector", selector), ("fieldSelector", fields)) if value}
    return (await Lister(transport, path, dict[str, Any], query).all()).items


def names(found: Sequence[str]) -> str:
    """The first few."""
    more = f" and {len(found) - _NUM_NAMED} more" if len(found) > _NUM_NAMED else ""
    return ", ".join(found[:_NUM_NAMED]) + more
