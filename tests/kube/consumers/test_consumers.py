"""Consumers of nodes and pods agree with a slow account made from the events alone, whatever happens: objects come,
change, go, return and can't be decoded for a while; watches lag, break off and miss events; etcd is restored; processes
restart."""

import ast
import asyncio
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kube.consumers.histories import HISTORIES, Cluster, Step
from tests.kube.consumers.servers import PATHS, ApiServer, End, Say
from tests.kube.consumers.table import Process, consumers, left_out
from tests.kube.consumers.told import assert_it_is_what_there_is

ROOT = Path(__file__).parents[3]
MOST_CHANGES = 4
"""Of a step."""


class Errors(logging.Handler):
    """Unexpected errors: a cache only logs the failure of a subscriber."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(self.format(record))


class History:
    """A cluster, and the process that currently watches it."""

    def __init__(self, server: ApiServer) -> None:
        self.cluster, self.errors = Cluster(server), Errors()
        self.process = Process(self.cluster)
        self.checked = -1
        self.restored_at: int | None = None
        """At which version the API server has begun anew, where nobody has noticed yet."""

    async def run(self, steps: Sequence[tuple[Step, bool]]) -> None:
        """Run all steps; of each, whether all is told at once."""
        await self.process.begin(PATHS)
        for (what, *arguments), at_once in steps:
            if self.is_due(MOST_CHANGES):
                await self.reconnect()
            if hasattr(self.cluster, what):
                getattr(self.cluster, what)(*arguments)
            else:
                await getattr(self, what)(*arguments)
            if at_once:
                await self.tell_all()
            self.check()
        await self.end()

    def check(self) -> None:
        """Compare all consumers, unless nothing was told since the last time."""
        if (moment := self.process.told.moment) == self.checked:
            return
        self.checked = moment
        for consumer in self.process.consumers:
            consumer.check(self.process.told)
        assert not self.errors.told

    async def say(self, path: str, order: Say | End) -> None:
        if self.restored_at is not None:
            await self.reconnect()
        await self.process.line.tell(path, order)

    async def reconnect(self) -> None:
        self.restored_at = None
        for path in PATHS:
            await self.process.line.tell(path, End.CUT)

    def is_due(self, most_changes: int) -> bool:
        """Whether that has to happen within so many changes: after a restore a version may mean another history."""
        versions, now = self.process.line.told_up_to.values(), self.cluster.server.version
        return self.restored_at is not None and any(
            self.restored_at < version <= now + most_changes for version in versions
        )

    async def tell_all(self) -> None:
        """Tell all that has happened."""
        for path in PATHS:
            await self.say(path, Say())
        assert_it_is_what_there_is(self.process.told, self.cluster.server.objects)
        for consumer in self.process.consumers:
            await consumer.check_at_rest(self.process.told)

    async def end(self) -> None:
        await self.tell_all()
        self.check()
        for consumer in self.process.consumers:
            await consumer.check_at_end(self.process.told)
        await self.process.end()
        assert not self.errors.told

    # Steps

    async def wait(self, seconds: float) -> None:
        self.cluster.now += seconds

    async def ask(self, slot: str) -> None:
        self.process.ask(slot)

    async def tell(self, path: str, most: int) -> None:
        await self.say(path, Say(most))

    async def end_watch(self, path: str, how: End, list_breaks: bool) -> None:
        if list_breaks:
            self.process.line.breaks.add(path)
        await self.say(path, how)

    async def restore(self, num_back: int) -> None:
        """Restore etcd from a backup; all connections are lost."""
        self._restore(max(self.cluster.server.version - num_back, 1))

    async def move(self, slot: str, node: str) -> None:
        """Restore a version from before a pod was bound, and bind it elsewhere before that is noticed."""
        version = self.cluster.server.unbound_at(slot)
        if version is not None:
            self._restore(version)
            if not self.is_due(2):
                self.cluster.bind(slot, node)

    def _restore(self, version: int) -> None:
        self.cluster.server.restore(version)
        self.restored_at = version if self.restored_at is None else min(self.restored_at, version)

    async def restart(self, order: Sequence[str]) -> None:
        await self.end()
        self.process, self.checked = Process(self.cluster), -1
        await self.process.begin(order)


@settings(max_examples=settings().max_examples * 3 // 2)
@given(selects=st.booleans(), steps=HISTORIES)
def test_consumers_agree_with_the_events_alone(selects: bool, steps: list[tuple[Step, bool]]) -> None:
    history = History(ApiServer(selects))
    logger = logging.getLogger("extender")
    logger.addHandler(history.errors)
    try:
        asyncio.run(history.run(steps))
    finally:
        logger.removeHandler(history.errors)


def subscriptions() -> Iterator[str]:
    """All in the product, by file and call."""
    for path in sorted((ROOT / "extender").rglob("*.py")):
        source = path.read_text()
        for call in ast.walk(ast.parse(source)) if ".subscribe(" in source else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "subscribe":
                yield f"{path.relative_to(ROOT)}: {ast.unparse(call)}"


def test_all_who_subscribe_are_compared() -> None:
    compared = {subscription for consumer in consumers() for subscription in consumer.subscriptions}
    assert set(subscriptions()) == compared | left_out().keys()
