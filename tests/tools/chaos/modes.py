"""What Kerf does in a run: the options by which a run is chosen, and what follows from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.controlplane.kerf import DRA_RBAC, QUEUE_RBAC, RBAC
from tests.tools.chaos.faults import Kind

TTL_S: Final = 4.0
RECORD: Final = "kerf-defrag"
"""The ConfigMap in which moves under way are written down, in the namespace of the pods."""
TOKEN: Final = "an-operator-of-this-harness"
REPLACE_S: Final = 8.0
"""How long Kerf waits for an evicted pod to leave, and for its replacement."""

# Everything that waits is shortened alike: kube-scheduler gives up first, then Kerf, then the reservation ends.
_KERF_TIMES: Final = ("cluster.request_timeout_s=2", f"decisions.reservation_ttl_s={TTL_S:g}")
# Nothing is kept for the first in the queue: the checker asks why a pod waits that fits.
_QUEUE: Final = ("queue.enabled=true", "queue.gang_timeout_s=4", "queue.reserve_after_s=3600")
_DEFRAG: Final = (
    *(f"defrag.record=default/{RECORD}", "defrag.restart_s=1", "defrag.moves_an_hour=100000", "defrag.budget_s=2"),
    *(f"defrag.replace_s={REPLACE_S:g}", "defrag.start_s=8", "defrag.target_s=5"),
    *("access.calls_per_s=0", "access.what_if_s=8"),
)
_WITHOUT: Final = "--without="
_DEVICE_CONTROLLERS: Final = ("resourceclaim-controller", "garbage-collector-controller")
_OWNER_CONTROLLERS: Final = (
    *("deployment-controller", "replicaset-controller", "job-controller", "disruption-controller"),
)


@dataclass(frozen=True, slots=True)
class Mode:
    """What is switched on."""

    queue: bool = False
    """Most pods wait in Kerf's queue."""
    extender: bool = True
    """Whether kube-scheduler calls Kerf."""
    dra: bool = False
    """Kerf allocates devices."""
    defrag: bool = False
    """Kerf moves pods."""
    without: tuple[Kind, ...] = ()
    """Kinds of faults that are left out."""

    @classmethod
    def read(cls, options: Sequence[str]) -> Self:
        """As `options` writes it."""
        kinds = (option.removeprefix(_WITHOUT) for option in options if option.startswith(_WITHOUT))
        return cls(
            queue="--queue" in options,
            extender="--no-extender" not in options,
            dra="--dra" in options,
            defrag="--defrag" in options,
            without=tuple(map(Kind, kinds)),
        )

    @property
    def options(self) -> list[str]:
        """As options of a command line."""
        switched = {"--queue": self.queue, "--no-extender": not self.extender, "--dra": self.dra}
        chosen = [option for option, on in {**switched, "--defrag": self.defrag}.items() if on]
        return [*chosen, *(f"{_WITHOUT}{kind}" for kind in self.without)]

    @property
    def refusals(self) -> bool:
        """Whether there are pods that no node takes, and an extender behind Kerf that refuses some."""
        return self.queue and not self.dra and not self.defrag

    @property
    def rights(self) -> list[Path]:
        """What Kerf may do there."""
        return [RBAC, *([QUEUE_RBAC] if self.queue else []), *([DRA_RBAC] if self.dra else [])]

    @property
    def controllers(self) -> tuple[str, ...]:
        """Of kube-controller-manager, none where it is not needed."""
        return (*(_DEVICE_CONTROLLERS if self.dra else ()), *(_OWNER_CONTROLLERS if self.defrag else ()))

    def settings(self, *, elects: bool, tokens: Path) -> list[str]:
        """Kerf's; `tokens`: the file of operators' tokens."""
        return [
            *(*_KERF_TIMES, *(_QUEUE if self.queue else ())),
            *(() if self.extender else ("queue.extender=false",)),
            *(("leader_election.mode=own",) if elects else ()),
            *(("dra.allocate=true",) if self.dra else ()),
            *((*_DEFRAG, f"access.apply_token_file={tokens}") if self.defrag else ()),
        ]
