"""What a run does and judges beside the usual; this is nothing, and each mode that has more says so by its own."""

from collections.abc import Collection

from tests.tools.chaos.checker import Violation
from tests.tools.chaos.clusters import Cluster
from tests.tools.chaos.holdings import Manifest
from tests.tools.chaos.journals import Journal
from tests.tools.chaos.steps import Steps


class Beside:
    """Of one run."""

    def __init__(self, cluster: Cluster, steps: Steps) -> None:
        self._cluster = cluster
        self.steps = steps
        """What happens to objects."""

    def prepare(self) -> None:
        """Nodes are there, and Kerf has yet to start."""

    def fill(self) -> None:
        """Kerf is ready, and the storm has yet to begin."""

    def begin(self) -> None:
        """The storm begins."""

    def end(self) -> None:
        """It is over."""

    def close(self) -> None:
        """So is the run."""

    def unsettled(self, nodes: Collection[Manifest]) -> list[Violation]:
        """What is not well (yet), once the storm is over."""
        return []

    def judged(self) -> list[Violation]:
        """What was wrong at any moment, as far as it was not judged at once."""
        return []

    def told(self) -> Journal | None:
        """All that the witness has noted of this run, None where it notes nothing."""
        return None


class Noted(Beside):
    """With a witness that keeps a journal."""

    def prepare(self) -> None:
        """What was before is over."""
        self._cluster.loop.call(self.journal.begin)

    def told(self) -> Journal:
        """All that was told so far."""
        return self._cluster.loop.call(self.journal.copy)

    @property
    def journal(self) -> Journal:
        """The witness's, which goes on."""
        if (journal := self._cluster.witness.journal) is None:
            raise RuntimeError("the witness of this cluster keeps no journal")
        return journal
