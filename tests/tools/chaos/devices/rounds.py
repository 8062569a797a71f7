"""What a run does and judges beside the usual where Kerf allocates devices."""

from collections.abc import Callable, Collection

from tests.tools.chaos.besides import Noted
from tests.tools.chaos.checker import Violation
from tests.tools.chaos.clusters import Cluster
from tests.tools.chaos.devices import checker
from tests.tools.chaos.devices.steps import DeviceSteps
from tests.tools.chaos.holdings import Manifest
from tests.tools.chaos.plans import Plan


class Allocating(Noted):
    """Of one run."""

    def __init__(self, cluster: Cluster, plan: Plan, clock: Callable[[], float]) -> None:
        self._steps = DeviceSteps(cluster, plan, clock)
        super().__init__(cluster, self._steps)
        self._nodes = dict.fromkeys(pool.node for pool in plan.devices.pools)

    def prepare(self) -> None:
        """Drivers publish what there is."""
        super().prepare()
        for node in self._nodes:
            self._steps.publish(node)

    def unsettled(self, nodes: Collection[Manifest]) -> list[Violation]:
        """Devices that are kept for nobody, and pods that wait although they could have some."""
        books = checker.state(self.told())
        return checker.kept(books) + checker.stranded(books, nodes)

    def judged(self) -> list[Violation]:
        """Devices that were taken twice at any moment, or given to nobody's pod."""
        board = self._cluster.board
        touched = self._steps.touched | self._cluster.loop.call(lambda: set(board.touched))
        return checker.replay(self.told(), touched)[1]
