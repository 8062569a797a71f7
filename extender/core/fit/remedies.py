"""What would help a pod that waits: a sentence, and the command that does it or tells more."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a remedy does."""

    WAIT = "wait"
    POD = "pod"
    """The pod, or what it belongs to, is changed."""
    MOVE = "move"
    """Running pods are moved."""
    NODES = "nodes"
    """Nodes are added or changed."""
    SETTING = "setting"
    """The deployment is changed."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One of them."""

    kind: Kind
    text: str
    command: str = ""
    """"" for none."""
