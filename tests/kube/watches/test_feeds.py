"""One watch of each feed, however many subscribe."""

from collections import Counter
from collections.abc import AsyncIterator

from extender.kube import objects
from extender.kube.client import Query
from extender.kube.indexes import Index
from extender.kube.memory import MemoryCluster
from extender.kube.transport import NODES_PATH
from extender.kube.watches import NODES, PODS, Feed, WatchHub
from tests.kube.loops import in_loop
from tests.ledger.builders import Clock, node_manifest, until


@in_loop
async def test_all_subscribers_share_one_watch() -> None:
    watches = Counter[str]()

    class Counting(MemoryCluster):
        async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
            watches[path] += 1
            async for lines in super().watch(path, query):
                yield lines

    class Names(set[str]):
        def changed(self, old: objects.Node | None, new: objects.Node | None) -> None:
            self -= {old.metadata.name} if old else set()
            self |= {new.metadata.name} if new else set()

        def keep(self, items: set[str], list_began: float) -> None:
            self.listed = items

    cluster = Counting([node_manifest("a"), node_manifest("b")])
    hub, first, second = WatchHub(cluster, Clock()), Names(), Names()
    for names in (first, second):
        hub.cache(NODES).subscribe(names.changed, on_list=names.keep)
    hub.begin(NODES, "mirror nodes")
    await until(lambda: watches)
    assert first == second == {"a", "b"}
    assert first.listed == second.listed == {"uid-a", "uid-b"}
    cluster.delete(node_manifest("a"))
    await until(lambda: first == second == {"b"})
    assert watches == {NODES_PATH: 1}
    await hub.tasks.end()


def test_a_feed_has_one_watch_for_each_selection() -> None:
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


def kept(**annotations: str) -> dict[str, str]:
    """What is kept of a pod's annotations."""
    cache = WatchHub(MemoryCluster(), Clock()).cache(PODS)
    cache.upsert(objects.Pod(objects.Metadata(name="p", namespace="ns", uid="u", annotations=annotations)))
    return cache["u"].metadata.annotations or {}


def test_what_is_kept_of_a_pods_annotations_is_bounded() -> None:
    own = {"kerf.dev/assigned-gpus": "0,1,2,3", "kerf.dev/assigned-node": "n" * 253, "kerf.dev/gpu-count": "4"}
    for others in (
        {"author/text": "x" * 250_000},
        {f"author/{number}": "" for number in range(8_000)},
        {f"kerf.dev/{number}": "" for number in range(8_000)},
        {f"kerf.dev/epoch-{number}": "e" for number in range(4_000)},
        {"kerf.dev/gpu-uuid": "x" * 250_000},
    ):
        texts = kept(**others, **own)
        assert {key: texts[key] for key in own} == own
        assert sum(len(key) + len(text) + 64 for key, text in texts.items()) <= 2**15 + 64


def test_of_other_annotations_the_shortest_are_kept() -> None:
    few = {f"hami.io/{number}": "x" * 500 for number in range(50)}
    assert kept(**few) == few
    texts = kept(**{"a/long": "x" * 100_000, "hami.io/short": "0"})
    assert texts["hami.io/short"] == "0"
    assert texts["a/long"] == "x" * (2**15 - 64 - len("hami.io/short") - 1 - 64 - len("a/long"))
