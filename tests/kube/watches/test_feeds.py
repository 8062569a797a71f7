"""One watch of each feed, however many listen."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from extender.kube import objects
from extender.kube.client import Query
from extender.kube.indexes import Index
from extender.kube.memory import MemoryCluster
from extender.kube.paths import NODES_PATH
from extender.kube.watches.feeds import NODES, PODS, Feed, WatchHub
from tests.ledger.builders import Clock, node_manifest, until


class CountingCluster(MemoryCluster):
    """Counts how many watches of each path were opened."""

    def __init__(self, *manifests: dict[str, object]) -> None:
        super().__init__(manifests)
        self.num_watches: dict[str, int] = {}

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        self.num_watches[path] = self.num_watches.get(path, 0) + 1
        async for lines in super().watch(path, query):
            yield lines


class Names:
    """Names of the objects that are there."""

    def __init__(self, *, fails: bool = False) -> None:
        self.names: set[str] = set()
        self._fails = fails

    def changed(self, old: objects.Node | None, new: objects.Node | None) -> None:
        if old is not None:
            self.names.discard(old.metadata.name)
        if new is not None:
            self.names.add(new.metadata.name)
            if self._fails:
                raise RuntimeError("a bug")

    def keep(self, items: set[str], list_began: float) -> None:
        self.listed = items


def test_all_who_listen_hear_of_one_watch() -> None:
    async def run() -> None:
        cluster = CountingCluster(node_manifest("a"), node_manifest("b"))
        hub, first, second = WatchHub(cluster, Clock()), Names(fails=True), Names()
        for names in (first, second):
            hub.cache(NODES).subscribe(names.changed, listed=names.keep)
        hub.begin(NODES, "mirror nodes")
        await until(lambda: cluster.num_watches)
        assert first.names == second.names == {"a", "b"}
        assert first.listed == second.listed == {"uid-a", "uid-b"}
        cluster.delete(node_manifest("a"))
        await until(lambda: first.names == second.names == {"b"})
        assert cluster.num_watches == {NODES_PATH: 1}
        with pytest.raises(RuntimeError, match="has missed them"):
            hub.cache(NODES).subscribe(Names().changed)
        await hub.tasks.end()

    asyncio.run(run())


def test_feeds_are_apart_by_what_they_select() -> None:
    hub = WatchHub(MemoryCluster(), Clock())
    assert hub.cache(PODS) is hub.cache(PODS)
    assert hub.reflector(PODS) is hub.reflector(PODS)
    assert hub.cache(PODS) is not hub.cache(Feed("pods", PODS.path, objects.Pod))


def test_an_index_keeps_no_empty_group() -> None:
    index = Index[int]()
    index.put("node-a", "x", 1)
    index.put("node-a", "y", 0)
    assert dict(index.of("node-a")) == {"x": 1, "y": 0}
    for key in ("x", "y", "y"):
        index.pop("node-a", key)
    assert (len(index), dict(index.of("node-a"))) == (0, {})
