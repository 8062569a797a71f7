"""How pods do on their nodes, and what is noted of these, with the slow account of both."""

from typing import Final

from extender.kube.objects import Pod
from extender.kube.transport import PODS_PATH
from extender.kube.watches import BOUND_PODS, NODES
from extender.parts.set_aside.quarantine import (
    AlikeNodes,
    Failures,
    FailureThresholds,
    PodOutcomes,
    QuarantineConfig,
    QuarantineController,
)
from tests.kube.consumers.histories import NODE_NAMES, SLOTS
from tests.kube.consumers.servers import is_unreadable
from tests.kube.consumers.table import Consumer, Process, has_gpus, is_ending, note_of
from tests.kube.consumers.told import BOUND, Stay, Told
from tests.ledger.builders import open_fence

_EARLY_S, _WINDOW_S = 1e9, 1e12
"""Nobody lives for longer than that here, and nothing is that old."""


class QuarantineAccount(Consumer):
    """Nodes that are quarantined, or on trial, by what is written on them; and pods that failed soon after their start,
    by what is told of them, or is there yet of those that are gone."""

    subscriptions = (
        "extender/parts/set_aside/part.py: hub.cache(NODES).subscribe(keeper.changed)",
        "extender/parts/set_aside/part.py: hub.group(BOUND_PODS).subscribe(lives.changed)",
    )

    def __init__(self, process: Process) -> None:
        super().__init__(process)

        def holds(pod: Pod) -> bool:
            claim = process.ledger.allocation(pod.metadata.uid)
            return bool(claim is not None and claim.holding) or bool(pod.spec.resource_claims)

        failures = Failures(FailureThresholds(failures=5, namespaces=3, window_s=_WINDOW_S))
        self.lives = PodOutcomes(
            transport=process.line,
            failures=failures,
            nodes=AlikeNodes(process.ledger, process.hub.cache(NODES), process.clock),
            has_gpus=holds,
            clock=process.clock,
            wall_clock=process.wall_clock,
            early_s=_EARLY_S,
            window_s=_WINDOW_S,
        )
        self.keeper = QuarantineController(
            process.line,
            process.ledger,
            process,  # type: ignore[arg-type]
            open_fence(),
            failures,
            self.lives,
            QuarantineConfig(acts=True, namespaces=3, early_s=_EARLY_S, max_frac=1.0, for_s=60.0, max_for_s=600.0),
            process.clock,
            process.wall_clock,
        )
        self.read = set[int]()
        self.num_failed = 0
        process.hub.cache(NODES).subscribe(self.keeper.changed)
        process.hub.group(BOUND_PODS).subscribe(self.lives.changed)

    def check(self, told: Told) -> None:
        said = {name: self.keeper.words(name).partition(":")[0] for name in NODE_NAMES}
        expected = dict.fromkeys(NODE_NAMES, "")
        for name, node in told.nodes().items():
            note = note_of(node, "set-aside")
            if len(note) > 1:  # else nobody can read it
                expected[name] = "on trial" if '"trial":true' in note else "quarantined"
        assert said == expected
        assert self.keeper.num_set_aside == sum(state == "quarantined" for state in expected.values())

    async def check_at_rest(self, told: Told) -> None:
        for _ in SLOTS:  # it reads some at a time
            await self.lives.read_ended()
        seen = sum(self._has_failed(stay) for stay in told.stays(BOUND))
        for stay in told.stays(BOUND):
            if stay.ended and stay.ended not in self.read:
                self.read.add(stay.ended)
                again = any(one.uid == stay.uid and one.began > stay.ended for one in told.stays(BOUND))
                self.num_failed += not again and not self._has_failed(stay) and self._failed_unseen(stay)
        assert self.lives.num_failed == seen + self.num_failed

    def _has_failed(self, stay: Stay) -> bool:
        return has_gpus(stay) and any(self._cannot_start(version.item) for version in stay.versions)

    @staticmethod
    def _cannot_start(pod: Pod) -> bool:
        states = (one.state for one in pod.status.container_statuses or ())
        return not is_ending(pod) and any(state and state.waiting for state in states)

    def _failed_unseen(self, stay: Stay) -> bool:
        found = self.process.cluster.server.objects[PODS_PATH].get(stay.last.key)
        if found is None or is_unreadable(found) or found["metadata"]["uid"] != stay.uid or is_ending(stay.last):
            return False
        failed = found["status"]["phase"] == "Failed" and "deletionTimestamp" not in found["metadata"]
        return has_gpus(stay) and failed and found["spec"].get("nodeName") == stay.last.spec.node_name


CONSUMERS: Final = (QuarantineAccount,)
LEFT_OUT: Final[dict[str, str]] = {}
