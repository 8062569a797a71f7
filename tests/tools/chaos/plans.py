"""What happens in a run: nodes, pods, and faults with their times."""

from dataclasses import dataclass

from tests.tools.chaos.devices.plans import NO_DEVICES, DevicesPlan
from tests.tools.chaos.faults import FOR_GOOD, WINDOW_S, Fault, Kind
from tests.tools.chaos.moves.plans import NO_MOVES, MovesPlan


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node of equal GPUs."""

    name: str
    gpus: int
    product: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class PodPlan:
    """A pod and when it comes."""

    name: str
    at_s: float
    scheduler: int
    """Which of the two schedulers it is for."""
    gpus: int
    by_resource: bool = False
    """By `nvidia.com/gpu`; else by annotation, where Kerf alone stands against over-commitment."""
    milli: int = 0
    """Of the compute of one GPU, a share of it; 0: whole GPUs."""
    memory_mib: int = 0
    """Memory that each of its GPUs must have, or that its share takes; 0: any."""
    model: str = ""
    node: str = ""
    """Where it runs from the beginning, placed by nobody's scheduler."""
    mirror: bool = False
    """Whether it stands for a static pod of its node's kubelet."""
    gated: bool = False
    """Whether it waits in Kerf's queue."""
    gang: str = ""
    gang_size: int = 0
    group: str = ""
    """Its PodGroup, Kubernetes' own kind of gang."""
    claims: tuple[str, ...] = ()
    """Names of claims, or of templates of claims."""
    cpu: str = "50m"
    owner: str = ""
    """The controller that it is said to be of."""
    obstacle: Kind | None = None
    """Why no node takes it."""
    guards: bool = False
    """Whether it has the port and the label for whose sake others are not taken beside it."""

    @property
    def size(self) -> float:
        """GPUs that it takes."""
        return self.milli / 1000 or self.gpus


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run."""

    seed: int
    replicas: int
    """Of Kerf."""
    elects: bool
    """Whether they elect their leader; two always do."""
    nodes: tuple[NodePlan, ...]
    pods: tuple[PodPlan, ...]
    late_pods: tuple[PodPlan, ...]
    """Those that come when all faults are over."""
    faults: tuple[Fault, ...]
    stops_clocks: bool = False
    """Whether Kerf's clocks can be made to miss time."""
    policy: bool = True
    """Whether the API server refuses what Kerf's admission policy says, where authors are hostile."""
    devices: DevicesPlan = NO_DEVICES
    moves: MovesPlan = NO_MOVES

    @property
    def load_frac(self) -> float:
        """GPUs asked for over GPUs installed, of the pods that some node takes and nobody deletes for good."""
        deleted = {fault.target for fault in self.faults if fault.kind in FOR_GOOD}
        pods = (pod for pod in (*self.pods, *self.late_pods) if pod.name not in deleted and pod.obstacle is None)
        return sum(pod.size for pod in pods) / sum(node.gpus for node in self.nodes)

    @property
    def ends_s(self) -> float:
        """When the last fault is over, seconds since the storm began."""
        return max([WINDOW_S, *(fault.at_s + fault.for_s for fault in self.faults)])
