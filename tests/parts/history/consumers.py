"""What the recorder has to say of pods and nodes, and the slow account of it."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from extender.history import journals
from extender.kube.objects import Pod
from extender.parts.history.recorder import PodRows, Recorder
from extender.queueing.pods.batches import gang_of
from tests.kube.consumers.table import Consumer, Process
from tests.kube.consumers.told import ALL, Told


class RecorderAccount(Consumer):
    """The history: a pod is told of when it comes, has its node, and is gone."""

    subscriptions = (
        "extender/parts/history/recorder.py: hub.cache(PODS).subscribe(self.changed, on_list=self._listed)",
    )

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.lines = list[Any]()
        self.anew = False
        self.recorder = Recorder(
            self,  # type: ignore[arg-type]
            15.0,
            process.hub,
            lambda salt: PodRows(process.ledger.read_request, gang_of, tuple, salt),
            lambda: process.ledger.snapshot(process.clock()),
            str,
            process.wall_clock,
        )

    def salt(self) -> None:
        """Names are as they are."""

    def write(self, lines: Sequence[bytes]) -> bool:
        """Into the history."""
        self.lines += [msgspec.json.decode(line, type=journals.Line) for line in lines]
        return True

    async def check_at_end(self, told: Told) -> None:
        await self.recorder.round()
        found, nodes = list[tuple[str, str]](), set[str]()
        for line in self.lines:
            match line:
                case journals.Pod(row):
                    found.append((row[0], row[-2]))
                case journals.Ended(uid):
                    found.append((uid, "ended"))
                case journals.Node(row):
                    nodes.add(row[0])
                case journals.Gone(name):
                    nodes.discard(name)
        assert found == list(self._lines(told))
        assert nodes == set(told.nodes())

    def _lines(self, told: Told) -> Iterator[tuple[str, str]]:
        """UID and node, or that it has ended."""
        changes = [(version.moment, version.item) for stay in told.stays(ALL) for version in stay.versions]
        changes += [(stay.ended, stay.uid) for stay in told.stays(ALL) if stay.ended]
        node_of = dict[str, str]()
        for _, what in sorted(changes, key=lambda one: one[0]):
            if isinstance(what, str):
                if what in node_of:
                    del node_of[what]
                    yield what, "ended"
                continue
            uid, node = what.metadata.uid, what.spec.node_name or ""
            if node_of.get(uid) != node and self._is_recorded(what):
                node_of[uid] = node
                yield uid, node

    def _is_recorded(self, pod: Pod) -> bool:
        asks = self.process.asks(pod)
        return asks is not None and not pod.metadata.belongs_to_a_node and not (asks.gpus and asks.gpus.mig)


CONSUMERS: Final = (RecorderAccount,)
LEFT_OUT: Final[dict[str, str]] = {}
