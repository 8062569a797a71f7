"""The cache of one kind: what it has is what all that was told came to, and so is what its handlers keep."""

import random
from dataclasses import dataclass, field

import pytest

from extender.kube.cache import Cache, Index
from extender.kube.decoding import Outline
from extender.kube.objects import Metadata, Pod, PodSpec, PodStatus


@dataclass(frozen=True)
class Seen:
    """What is derived of a pod."""

    uid: str
    version: int
    node: str


BY_NODE: Index[Seen] = Index("node", lambda seen: [seen.node] if seen.node else [])


def pod(uid: str, version: int, node: str = "", phase: str = "Running") -> Pod:
    metadata = Metadata(name=uid, namespace="ns", uid=uid, resource_version=str(version))
    return Pod(metadata, PodSpec(node_name=node or None), PodStatus(phase=phase))


def derive(item: Pod) -> Seen:
    text = item.metadata.resource_version
    return Seen(item.metadata.uid, int(text) if text.isdecimal() else 0, item.spec.node_name or "")


def unread(item: Outline) -> Pod:
    return pod(item.uid, int(item.resource_version), "whole-node")


def cache_of_pods() -> Cache[Pod, Seen]:
    return Cache(derive, indexes=[BY_NODE], stand_in=unread, wanted=lambda item: not item.finished)


@dataclass
class Fold:
    """A consumer: nothing but its handler's calls."""

    seen: dict[str, Seen] = field(default_factory=dict)
    num_calls: int = 0

    def __call__(self, old: Seen | None, new: Seen | None) -> None:
        self.num_calls += 1
        assert old is not None or new is not None
        uid = (old or new).uid  # type: ignore[union-attr]
        assert self.seen.get(uid) == old, "each change begins where the last one ended"
        assert old is None or new is None or old.uid == new.uid
        if new is None:
            del self.seen[uid]
        else:
            self.seen[uid] = new


@dataclass
class World:
    """An API server of pods, whose watch lags behind, and the cache that follows it."""

    rng: random.Random
    version: int = 0
    pods: dict[str, Pod] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    log: list[tuple[str, Pod, bool]] = field(default_factory=list)
    """What the watch has yet to tell: kind, object, whether it can be read."""

    def change(self) -> Pod:
        """Somebody makes, changes, binds, ends or deletes a pod."""
        self.version += 1
        uid = f"u{self.rng.randrange(6)}-{self.rng.randrange(3)}"
        before = self.pods.get(uid)
        if before is not None and self.rng.random() < 0.3:
            del self.pods[uid]
            self.unreadable.discard(uid)
            gone = pod(uid, self.version, before.spec.node_name or "")
            self.log.append(("DELETED", gone, True))
            return gone
        node = (before.spec.node_name if before else "") or self.rng.choice(["", "a", "b"])
        finished = node and self.rng.random() < 0.1
        now = pod(uid, self.version, node, "Succeeded" if finished else "Running")
        readable = self.rng.random() < 0.85
        (self.unreadable.discard if readable else self.unreadable.add)(uid)
        self.pods[uid] = now
        self.log.append(("MODIFIED", now, readable))
        return now

    def tell(self, cache: Cache[Pod, Seen]) -> None:
        """The next thing that the watch tells."""
        if not self.log:
            return
        kind, item, readable = self.log.pop(0)
        if kind == "DELETED":
            cache.remove(item)
        elif readable:
            cache.upsert(item)
        else:
            cache.set_aside(outline(item))

    def relist(self, cache: Cache[Pod, Seen], began: float) -> None:
        """A complete list: the watch begins anew after it."""
        self.log.clear()
        for uid, item in self.pods.items():
            (cache.set_aside(outline(item)) if uid in self.unreadable else cache.upsert(item))
        cache.keep(set(self.pods), began, str(self.version))


def outline(item: Pod) -> Outline:
    metadata = item.metadata
    return Outline(
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        node=item.spec.node_name or "",
        phase=item.status.phase,
    )


@pytest.mark.parametrize("seed", range(60))
def test_consumers_keep_what_all_changes_came_to(seed: int) -> None:
    rng, cache, consumer, listed = random.Random(seed), cache_of_pods(), Fold(), list[float]()
    world = World(rng)
    cache.subscribe(consumer, listed=lambda uids, began: listed.append(began), stand_ins=True)
    for step in range(400):
        draw = rng.random()
        if draw < 0.5:
            changed = world.change()
            own = world.log[-1]
            if rng.random() < 0.2 and own[0] == "MODIFIED" and own[2]:
                cache.written(changed)
        elif draw < 0.97:
            world.tell(cache)
        else:
            world.relist(cache, float(step))
        has = dict(cache)
        assert consumer.seen == has
        for node in ("a", "b", "whole-node"):
            assert {seen.uid for seen in cache.by(BY_NODE, node)} == {u for u, s in has.items() if s.node == node}
        assert set(cache.groups(BY_NODE)) == {seen.node for seen in has.values() if seen.node}
    while world.log:
        world.tell(cache)
    alive = {uid: item for uid, item in world.pods.items() if not item.finished}
    readable = {uid: derive(item) for uid, item in alive.items() if uid not in world.unreadable}
    has = dict(cache)
    assert {uid: has.get(uid) for uid in readable} == readable
    assert has.keys() == alive.keys()
    world.relist(cache, 1e9)
    assert listed[-1] == 1e9
    assert cache.keys() <= world.pods.keys()


def test_what_was_written_is_not_taken_back_by_what_a_watch_tells_from_before() -> None:
    cache = cache_of_pods()
    cache.upsert(pod("p", 1))
    cache.written(pod("p", 5, "a"))
    cache.upsert(pod("p", 3))
    assert cache.get("p") == Seen("p", 5, "a")
    cache.upsert(pod("p", 6, "a"))
    assert cache.get("p") == Seen("p", 6, "a")


def test_an_answer_that_comes_after_the_watch_has_told_that_the_object_is_gone_brings_nothing_back() -> None:
    cache = cache_of_pods()
    cache.upsert(pod("p", 1))
    cache.remove(pod("p", 7))
    cache.written(pod("p", 5, "a"))
    assert cache.get("p") is None
    cache.keep(set(), 0.0, "20")
    cache.written(pod("q", 12))
    assert cache.get("q") is None


def test_what_was_written_is_untold_until_a_watch_has_told_of_it() -> None:
    cache, untold = cache_of_pods(), list[bool]()
    cache.subscribe(lambda old, new: untold.append(cache.is_untold("p")))
    for tell, version in ((cache.upsert, 1), (cache.written, 5), (cache.upsert, 3), (cache.upsert, 5)):
        tell(pod("p", version))
    assert untold == [False, True, False]


def test_where_versions_begin_anew_what_is_written_and_told_from_then_on_counts() -> None:
    cache = cache_of_pods()
    cache.upsert(pod("told", 900))
    cache.written(pod("untold", 1000))
    cache.upsert(pod("told", 400))
    cache.keep({"told", "untold"}, 0.0, "500")
    cache.upsert(pod("untold", 501))
    cache.written(pod("told", 502, "a"))
    assert dict(cache) == {"told": Seen("told", 502, "a"), "untold": Seen("untold", 501, "")}


def test_versions_that_are_no_numbers_are_as_good_as_none() -> None:
    cache, item = cache_of_pods(), pod("p", 0, "a")
    item.metadata.resource_version = "opaque"
    cache.upsert(pod("p", 1))
    cache.written(item)
    assert cache.get("p") == derive(item)
    item.metadata.uid = "q"
    cache.upsert(item)
    assert cache.get("q") == derive(item)


def test_where_no_version_is_a_number_a_list_tells_what_there_is() -> None:
    cache, item = cache_of_pods(), pod("p", 0)
    item.metadata.resource_version = "opaque"
    cache.upsert(item)
    cache.keep(set(), 0.0, "opaque")
    assert dict(cache) == {}


def test_the_very_first_version_counts() -> None:
    cache = cache_of_pods()
    cache.written(pod("p", 1))
    assert cache.get("p") == Seen("p", 1, "")
    cache.upsert(pod("p", 1))
    cache.remove(pod("p", 1))
    cache.written(pod("p", 1))
    assert cache.get("p") is None


def test_an_answer_that_comes_after_the_watch_has_told_of_that_write_is_no_news() -> None:
    cache, consumer = cache_of_pods(), Fold()
    cache.subscribe(consumer)
    cache.upsert(pod("p", 5, "a"))
    cache.written(pod("p", 5, "a"))
    assert not cache.is_untold("p")
    assert consumer.num_calls == 1


def test_what_is_gone_is_not_untold() -> None:
    cache = cache_of_pods()
    cache.written(pod("p", 5))
    cache.remove(pod("p", 6))
    assert not cache.is_untold("p")


def test_a_list_from_before_a_write_does_not_end_what_was_written() -> None:
    cache = cache_of_pods()
    cache.written(pod("p", 9))
    cache.keep(set(), 0.0, "8")
    assert cache.get("p") is not None
    cache.keep(set(), 1.0, "9")
    assert cache.get("p") is None


def test_a_name_that_is_used_again_is_gone_first() -> None:
    cache, told = cache_of_pods(), list[tuple[str, str]]()
    cache.subscribe(lambda old, new: told.append((old.uid if old else "", new.uid if new else "")))
    cache.upsert(pod("first", 1))
    cache.remove(pod("first", 2))
    cache.upsert(pod("second", 3))
    assert told == [("", "first"), ("first", ""), ("", "second")]


def test_an_object_whose_name_another_one_has_by_now_is_gone_first() -> None:
    """As a list tells: it names the new one before it is done."""
    cache, told = cache_of_pods(), list[tuple[str, str]]()
    cache.subscribe(lambda old, new: told.append((old.uid if old else "", new.uid if new else "")))
    first, second = pod("first", 1), pod("second", 3)
    first.metadata.name = second.metadata.name = "p"
    cache.upsert(first)
    assert cache.named("p", "ns") == derive(first)
    cache.upsert(second)
    cache.keep({"second"}, 0.0, "4")
    assert told == [("", "first"), ("first", ""), ("", "second")]
    assert (cache.named("p", "ns"), cache.named("p")) == (derive(second), None)
    cache.remove(second)
    assert cache.named("p", "ns") is None


def test_a_pod_that_does_not_have_its_node_any_more_is_gone_first() -> None:
    """As after an etcd was restored: it waits again, or is bound elsewhere since."""
    cache, told = cache_of_pods(), list[tuple[str, str, bool]]()

    def hear(old: Seen | None, new: Seen | None) -> None:
        told.append((old.node if old else "gone", new.node if new else "gone", cache.lists_gone))

    cache.subscribe(hear)
    for version, node in enumerate(("", "a", "a", "b", ""), 1):
        cache.upsert(pod("p", version, node))
    assert told == [
        *(("gone", "", False), ("", "a", False), ("a", "a", False)),
        *(("a", "gone", True), ("gone", "b", False)),
        *(("b", "gone", True), ("gone", "", False)),
    ]
    assert (cache.named("p", "ns"), cache.by(BY_NODE, "a"), cache.by(BY_NODE, "b")) == (Seen("p", 5, ""), [], [])


def test_of_a_cluster_that_was_restored_all_objects_are_others() -> None:
    """A list is older than what was told: whatever happened since to those that are as they were has not happened."""
    cache, told = cache_of_pods(), list[tuple[str, str, bool]]()

    def hear(old: Seen | None, new: Seen | None) -> None:
        told.append(("come" if new else "gone", (new or old).uid, cache.lists_gone))  # type: ignore[union-attr]

    cache.subscribe(hear)
    cache.upsert(pod("p", 3, "a"))
    cache.upsert(pod("q", 9))
    cache.set_aside(outline(pod("r", 9, "b")))
    told.clear()
    cache.keep({"p", "r"}, 0.0, "9")
    assert told == [("gone", "q", True)]
    told.clear()
    cache.keep({"p", "r"}, 0.0, "8")
    assert told == [("gone", "p", True), ("come", "p", False)]
    assert cache.is_stand_in("r")
    assert (cache.named("p", "ns"), cache.by(BY_NODE, "a")) == (Seen("p", 3, "a"), [Seen("p", 3, "a")])


def test_an_object_is_where_it_was_in_a_cluster_that_was_restored() -> None:
    cache, told = cache_of_pods(), list[tuple[str, bool]]()
    cache.upsert(pod("placed", 9, "a"))
    cache.upsert(pod("waiting", 9))
    cache.keep({"placed", "waiting"}, 0.0, "5")
    cache = cache_of_pods()
    cache.subscribe(lambda old, new: told.append((new.node if new else "gone", cache.lists_gone)))
    cache.upsert(pod("placed", 9, "a"))
    cache.upsert(pod("waiting", 9))
    cache.keep({"placed", "waiting"}, 0.0, "5")
    told.clear()
    cache.upsert(pod("placed", 10, "b"))
    cache.upsert(pod("waiting", 10, "b"))
    assert told == [("gone", True), ("b", False), ("b", False)]


def test_when_an_object_went_whose_name_another_one_has_was_missed() -> None:
    cache, missed = cache_of_pods(), list[bool]()
    cache.subscribe(lambda old, new: missed.append(cache.lists_gone))
    first, second = pod("first", 1), pod("second", 3)
    first.metadata.name = second.metadata.name = "p"
    cache.upsert(first)
    cache.upsert(second)
    cache.remove(second)
    assert missed == [False, True, False, False]


def test_one_that_fails_stops_nobody_and_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    cache, consumer = cache_of_pods(), Fold()

    def fails(old: Seen | None, new: Seen | None) -> None:
        raise ValueError("broken")

    class Failing:
        def __repr__(self) -> str:
            return "another one"

        __call__ = staticmethod(fails)

    cache.subscribe(fails)
    cache.subscribe(Failing())
    cache.subscribe(consumer)
    cache.upsert(pod("p", 1))
    assert consumer.seen == {"p": Seen("p", 1, "")}
    first, second = caplog.messages
    assert first.startswith("test_one_that_fails")
    assert second == "another one failed to process a change"


def test_whoever_asks_hears_of_lists_and_what_they_named() -> None:
    cache, lists = cache_of_pods(), list[tuple[set[str], float]]()
    cache.subscribe(Fold())
    cache.subscribe(Fold(), listed=lambda uids, began: lists.append((uids, began)))
    cache.upsert(pod("p", 1))
    cache.keep({"p", "unread"}, 7.0, "1")
    assert lists == [({"p", "unread"}, 7.0)]


def test_whoever_comes_too_late_is_told_so() -> None:
    cache = cache_of_pods()
    cache.upsert(pod("p", 1))
    with pytest.raises(RuntimeError, match="would miss"):
        cache.subscribe(lambda old, new: None)
    listed = cache_of_pods()
    listed.keep(set(), 0.0, "1")
    with pytest.raises(RuntimeError, match="would miss"):
        listed.subscribe(lambda old, new: None)


def test_an_object_of_which_nobody_was_told_that_it_was_being_deleted_is_that_before_it_is_gone() -> None:
    cache, told = cache_of_pods(), list[tuple[int, int]]()
    cache.subscribe(
        lambda old, new: told.append((old.version if old else 0, new.version if new else 0)), stand_ins=True
    )
    gone, never_read, never_known = (pod(uid, 3, "a") for uid in ("gone", "never-read", "never-known"))
    cache.upsert(pod("gone", 1, "a"))
    cache.set_aside(outline(pod("never-read", 1, "a")))
    told.clear()
    for item in (gone, never_read, never_known):
        item.metadata.deletion_timestamp = "1970-01-01T00:00:00Z"
        cache.remove(item)
    assert told == [(1, 3), (3, 0), (1, 0)]


def test_nothing_is_kept_of_what_is_gone() -> None:
    """As many entries as in a new cache, whatever it keeps them in."""

    def num_kept(cache: Cache[Pod, Seen]) -> int:
        return sum(len(part) for part in vars(cache).values() if isinstance(part, dict | set))

    cache = cache_of_pods()
    cache.upsert(pod("p", 1, "a"))
    cache.written(pod("q", 2, "a"))
    cache.set_aside(outline(pod("r", 3, "a")))
    for uid in "pqr":
        cache.remove(pod(uid, 4, "a"))
    assert num_kept(cache) == num_kept(cache_of_pods())


def test_who_asks_for_no_stand_ins_hears_of_an_object_once_it_can_be_read() -> None:
    cache, real, all_told = cache_of_pods(), Fold(), Fold()
    cache.subscribe(real)
    cache.subscribe(all_told, stand_ins=True)
    cache.set_aside(outline(pod("p", 1, "a")))
    assert (real.seen, all_told.seen) == ({}, {"p": Seen("p", 1, "whole-node")})
    cache.upsert(pod("p", 2, "a"))
    cache.upsert(pod("p", 3, "a"))
    assert real.seen == all_told.seen == {"p": Seen("p", 3, "a")}
    assert real.num_calls == 2


def test_a_part_is_the_objects_of_a_group_as_if_there_were_no_others() -> None:
    cache, consumer, lists = cache_of_pods(), Fold(), list[set[str]]()
    on_a = cache.part(BY_NODE, "a")
    on_a.subscribe(consumer, listed=lambda uids, began: lists.append(uids))
    assert (dict(on_a), len(on_a)) == ({}, 0)
    for uid, node in (("p", ""), ("q", "b"), ("r", "a")):
        cache.upsert(pod(uid, 1, node))
    assert dict(on_a) == consumer.seen == {"r": Seen("r", 1, "a")}
    cache.upsert(pod("p", 2, "a"))
    cache.upsert(pod("r", 2, "a"))
    assert dict(on_a) == consumer.seen == {"r": Seen("r", 2, "a"), "p": Seen("p", 2, "a")}
    assert consumer.num_calls == 3, "nothing of the others"
    cache.remove(pod("p", 3, "a"))
    cache.upsert(pod("r", 3, "b"))
    assert dict(on_a) == consumer.seen == {}
    cache.keep({"q", "r"}, 0.0, "3")
    assert lists == [{"q", "r"}], "a list names the objects of all groups"


def test_a_part_tells_of_stand_ins_whoever_asks_for_them() -> None:
    cache, real, all_told, missed = cache_of_pods(), Fold(), Fold(), list[bool]()
    held = cache.part(BY_NODE, "whole-node")
    held.subscribe(real)
    held.subscribe(all_told, stand_ins=True)
    held.subscribe(lambda old, new: missed.append(held.lists_gone), stand_ins=True)
    cache.set_aside(outline(pod("p", 1, "a")))
    assert (real.seen, all_told.seen) == ({}, {"p": Seen("p", 1, "whole-node")})
    cache.keep(set(), 0.0, "2")
    assert missed == [False, True]


def test_a_part_by_an_index_that_is_new_is_of_a_cache_that_has_nothing_yet() -> None:
    by_version: Index[Seen] = Index("version", lambda seen: [str(seen.version)])
    cache = cache_of_pods()
    first = cache.part(by_version, "1")
    cache.upsert(pod("p", 1))
    assert list(first) == list(cache.part(by_version, "1")) == ["p"]
    with pytest.raises(RuntimeError, match="not by another"):
        cache.part(Index("another", lambda seen: []), "1")


def test_what_has_no_namespace_goes_by_its_name() -> None:
    cache, item = cache_of_pods(), pod("p", 1)
    item.metadata.namespace = ""
    cache.upsert(item)
    assert (cache.named("p"), cache.named("p", "ns")) == (Seen("p", 1, ""), None)


def test_what_can_not_be_read_stays_what_it_was_known_as_and_holds_its_node_where_it_never_was() -> None:
    cache = cache_of_pods()
    cache.upsert(pod("known", 1, "a"))
    cache.set_aside(outline(pod("known", 2, "b")))
    cache.set_aside(outline(pod("never", 3, "b")))
    assert [cache.get(uid) for uid in ("known", "never")] == [Seen("known", 1, "a"), Seen("never", 3, "whole-node")]
    cache.upsert(pod("never", 4, "b"))
    assert cache.get("never") == Seen("never", 4, "b")


def test_a_kind_may_want_nothing_of_what_can_not_be_read() -> None:
    cache = Cache(derive, keeps_unread=False)
    cache.upsert(pod("p", 1))
    cache.set_aside(outline(pod("p", 2)))
    assert cache.get("p") is None
