"""What a plan is made on, as it reaches the process that makes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from extender.core.clusters import Cluster
from extender.core.policies.policy import Policy
from extender.planning.quotas import Quotas
from extender.plugins.holdings import Holding

NODES: Final = b"n"
PODS: Final = b"p"
PENDING: Final = b"w"
BUDGETS: Final = b"b"
JOBS: Final = b"j"
HELD: Final = b"h"
FACTS: Final = b"f"
"""What begins each message: what it holds, a page of the API server's list or what is pickled. FACTS comes last."""


class Held(NamedTuple):
    """What the ledger holds for a pod on a node."""

    uid: str
    key: str
    """`namespace/name`, "" where the watch has not told of it yet."""
    node: str
    holding: Holding
    bound: bool
    """Whether the pod has its node; else it is being placed there."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What moving pods costs beside the work that is lost, and who is left alone."""

    restart_s: float = 60.0
    """Until a pod that was moved works again, where its owner's pods don't tell it."""
    restart_s_of: Mapping[str, float] = field(default_factory=dict)
    """The same by owner, as `extender.plugins.pods.owner_of` tells it, as far as they do; found as plans are made."""
    exempt: frozenset[str] = frozenset()
    """Namespaces of which nobody is moved."""
    rest_s: float = 0.0
    """Nobody is moved who has run for less."""
    crowded: frozenset[tuple[str, str]] = frozenset()
    """Namespaces and UIDs of the controllers of which so many pods wait that the mover refuses to move any."""
    resting: frozenset[str] = frozenset()
    """UIDs of the controllers whose pods are left alone for a while."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The cluster at one moment, beside what the API server lists."""

    cluster: Cluster
    pods_on: Mapping[str, tuple[str, ...]]
    """UIDs of the pods on each node."""
    policy: str
    """The default one."""
    policies: Mapping[str, Policy]
    """By name, as they are configured."""
    quotas: Quotas
    used: Mapping[str, float]
    """GPUs in use by namespace."""
    queued: Mapping[str, tuple[str, str]]
    """Of pods in the queue, by UID: gang and topology, as the queue takes them."""
    gated_in: frozenset[str] | None
    """Namespaces all of whose pods wait in the queue; None where no pods are moved, so that it matters to nobody."""
    costs: Costs
    now: float
    """Unix time."""
    max_s: float
    """The time for an answer."""
    id: str
    """Of the plan, by which it is asked for again."""
    no_jobs: str = ""
    """Why Jobs can't be read, "" where they were."""
    sick: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Indices of sick GPUs, by node."""
