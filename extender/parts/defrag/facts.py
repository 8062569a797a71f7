"""Input of the planning process, and the messages in which it arrives."""

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
"""First byte of each message. The rest is a page of an API list, or pickled (HELD, FACTS). FACTS comes last."""


class Held(NamedTuple):
    """What the ledger has booked for a pod on a node."""

    uid: str
    key: str
    """`namespace/name`, "" while the watch has not delivered the pod."""
    node: str
    holding: Holding
    bound: bool
    """Whether the pod is bound; otherwise it is being placed there."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Restart costs, and which pods are not moved."""

    restart_s: float = 60.0
    """Default seconds until a moved pod works again."""
    restart_s_of: Mapping[str, float] = field(default_factory=dict)
    """The same by owner (`extender.plugins.pods.owner_of`), from its running pods; set by the planning process."""
    exempt: frozenset[str] = frozenset()
    """Namespaces whose pods are not moved."""
    rest_s: float = 0.0
    """Pods that have run for fewer seconds are not moved."""
    crowded: frozenset[tuple[str, str]] = frozenset()
    """Namespace and UID of the controllers with so many waiting pods that the mover moves none of theirs."""
    backing_off: frozenset[str] = frozenset()
    """UIDs of the controllers whose pods are left alone after failed moves."""


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """A consistent snapshot of the cluster, beside the API server's lists."""

    cluster: Cluster
    pods_on: Mapping[str, tuple[str, ...]]
    """UIDs of the pods on each node."""
    policy: str
    """Name of the default policy."""
    policies: Mapping[str, Policy]
    """Configured policies by name."""
    quotas: Quotas
    used: Mapping[str, float]
    """GPUs in use by namespace."""
    queued: Mapping[str, tuple[str, str]]
    """Gang and topology of queued pods, by UID, as the queue reads them."""
    gated_in: frozenset[str] | None
    """Namespaces whose pods all wait in the queue; None if no pods are moved, so that it does not matter."""
    costs: Costs
    now: float
    """Unix time."""
    max_s: float
    """Time limit of the answer, in seconds."""
    id: str
    """ID of the plan."""
    no_jobs: str = ""
    """Why Jobs can't be read, "" if they can."""
    sick: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Indices of unhealthy GPUs, by node."""
