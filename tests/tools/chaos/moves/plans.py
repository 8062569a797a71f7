"""What a run has of pods that can be moved: controllers, and what room is made for."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Owner(StrEnum):
    """What makes a pod anew."""

    DEPLOYMENT = "Deployment"
    REPLICA_SET = "ReplicaSet"
    JOB = "Job"


@dataclass(frozen=True, slots=True)
class OwnerPlan:
    """A controller and its pods."""

    name: str
    kind: Owner
    replicas: int
    gpus: int
    """Of each of its pods."""
    urgent: bool = False
    """Whether its pods are of a higher priority than everything that room is made for."""
    stays: bool = False
    """Whether its pods say that they are not to be moved."""
    keeps: int | None = None
    """Pods that its PodDisruptionBudget keeps available, None where it has none."""
    gang: bool = False
    """Whether its pods run together or not at all."""
    leaves: bool = False
    """Whether it goes before the storm: what is left is scattered."""


@dataclass(frozen=True, slots=True)
class MovesPlan:
    """All of a run."""

    owners: tuple[OwnerPlan, ...] = ()
    targets: tuple[str, ...] = ()
    """Pods and gangs, by name, that room is asked for."""


NO_MOVES: Final = MovesPlan()
