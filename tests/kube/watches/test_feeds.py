"""One watch of each feed, however many listen."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from extender.kube import objects
from extender.kube.client import Query
from extender.kube.indexes import Index
from extender.kube.memory import MemoryCluster
from extender.kube.transport import NODES_PATH
from extender.kube.watches import NODES, PODS, Feed, WatchHub
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
        with pytest.raises(RuntimeError, match="would miss"):
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


def annotated(**texts: str) -> objects.Pod:
    return objects.Pod(objects.Metadata(name="p", namespace="ns", uid="u", annotations=texts))


@pytest.mark.parametrize(
    "others",
    [
        {"author/text": "x" * 250_000},
        {f"author/{number}": "" for number in range(8_000)},
        {f"kerf.dev/{number}": "" for number in range(8_000)},
        {f"kerf.dev/epoch-{number}": "e" for number in range(4_000)},
        {"kerf.dev/gpu-uuid": "x" * 250_000},
    ],
    ids=["long", "many", "many of Kerf's domain", "many that begin like Kerf's", "one of Kerf's"],
)
def test_what_is_kept_of_a_pods_annotations_is_bounded_and_kerfs_own_are_kept(others: dict[str, str]) -> None:
    own = {"kerf.dev/assigned-gpus": "0,1,2,3", "kerf.dev/assigned-node": "n" * 253, "kerf.dev/gpu-count": "4"}
    cache = WatchHub(MemoryCluster(), lambda: 0.0).cache(PODS)
    cache.upsert(annotated(**others, **own))
    kept = cache["u"].metadata.annotations or {}
    assert {key: kept[key] for key in own} == own
    assert sum(len(key) + len(text) + 64 for key, text in kept.items()) <= 2**15 + 64


def test_annotations_that_are_not_too_many_are_kept_as_they_are() -> None:
    cache = WatchHub(MemoryCluster(), lambda: 0.0).cache(PODS)
    pod = annotated(**{f"hami.io/{number}": "x" * 500 for number in range(50)})
    texts = dict(pod.metadata.annotations or {})
    cache.upsert(pod)
    assert cache["u"].metadata.annotations == texts


def test_of_others_the_shortest_are_kept() -> None:
    cache = WatchHub(MemoryCluster(), lambda: 0.0).cache(PODS)
    cache.upsert(annotated(**{"a/long": "x" * 100_000, "hami.io/short": "0"}))
    kept = cache["u"].metadata.annotations or {}
    assert kept["hami.io/short"] == "0"
    assert kept["a/long"] == "x" * (2**15 - 64 - len("hami.io/short") - 1 - 64 - len("a/long"))
