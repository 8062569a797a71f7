"""The cache of one kind: its handlers' calls add up to what it has."""

import random
from dataclasses import dataclass
from functools import partial

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

    def __str__(self) -> str:
        return f"{self.uid} {self.version} {self.node}".strip()


BY_NODE: Index[Seen] = Index("node", lambda seen: [seen.node] if seen.node else [])


def pod(uid: str, version: int | str, node: str = "", phase: str = "Running", *, name: str = "") -> Pod:
    metadata = Metadata(name=name or uid, namespace="ns", uid=uid, resource_version=str(version))
    return Pod(metadata, PodSpec(node_name=node or None), PodStatus(phase=phase))


def derive(item: Pod) -> Seen:
    text = item.metadata.resource_version
    return Seen(item.metadata.uid, int(text) if text.isdecimal() else 0, item.spec.node_name or "")


def outline(item: Pod) -> Outline:
    return Outline(
        name=item.metadata.name,
        namespace=item.metadata.namespace,
        uid=item.metadata.uid,
        resource_version=item.metadata.resource_version,
        node=item.spec.node_name or "",
        phase=item.status.phase,
    )


def cache_of_pods() -> Cache[Pod, Seen]:
    """Stand-ins are on the node `whole-node`."""
    return Cache(
        derive,
        indexes=[BY_NODE],
        stand_in=lambda item: pod(item.uid, item.resource_version, "whole-node"),
        wanted=lambda item: not item.finished,
    )


def heard(cache: Cache[Pod, Seen], *, stand_ins: bool = True) -> list[str]:
    """The changes from now on: added `+`, changed `>`, removed `-`, and `?` if the event was missed."""
    told: list[str] = []

    def hear(old: Seen | None, new: Seen | None) -> None:
        told.append(("+" if old is None else ">" if new else "-") + str(new or old) + "?" * cache.removals_missed)

    cache.subscribe(hear, stand_ins=stand_ins)
    return told


class Fold(dict[str, Seen]):
    """A consumer that knows only its handler's calls."""

    def __call__(self, old: Seen | None, new: Seen | None) -> None:
        uids = {seen.uid for seen in (old, new) if seen is not None}
        (uid,) = uids
        assert self.get(uid) == old, "each change begins where the last one ended"
        if new is None:
            del self[uid]
        else:
            self[uid] = new


def follow(seed: int) -> None:
    """Random writes of this process and of others, whose events lag behind, and lists.

    tests/kube/consumers has what can't be decoded, what finishes, and restored clusters.
    """
    rng, cache, consumer = random.Random(seed), cache_of_pods(), Fold()
    cache.subscribe(consumer)
    pods, events, version = dict[str, Pod](), list[tuple[str, Pod]](), 0
    for _ in range(400):
        draw, uid = rng.random(), f"u{rng.randrange(6)}"
        before = pods.get(uid)
        if draw < 0.5:
            version += 1
            node = (before.spec.node_name if before else "") or rng.choice(["", "a", "b"])
            changed = pod(uid, version, node)
            if before is not None and rng.random() < 0.3:
                del pods[uid]
                events.append(("DELETED", changed))
                continue
            pods[uid] = changed
            events.append(("MODIFIED", changed))
            if rng.random() < 0.2:
                cache.written(changed)
        elif draw < 0.97 and events:
            kind, item = events.pop(0)
            (cache.remove if kind == "DELETED" else cache.upsert)(item)
        elif draw >= 0.97:
            events.clear()
            for item in pods.values():
                cache.upsert(item)
            cache.retain_only(set(pods), 0.0, str(version))
        assert consumer == dict(cache)
        for node in ("a", "b"):
            assert {seen.uid for seen in cache.by_group(BY_NODE, node)} == {
                u for u, s in cache.items() if s.node == node
            }
    for kind, item in events:
        (cache.remove if kind == "DELETED" else cache.upsert)(item)
    assert dict(cache) == {uid: derive(item) for uid, item in pods.items()}


def test_changes_add_up_to_what_there_is() -> None:
    for seed in range(60):
        follow(seed)


# This process's writes


def test_older_events_and_lists_do_not_undo_a_write() -> None:
    cache, untold = cache_of_pods(), list[bool]()
    cache.subscribe(lambda old, new: untold.append(cache.is_unconfirmed("p")))
    for change, version in ((cache.upsert, 1), (cache.written, 5), (cache.upsert, 3), (cache.upsert, 5)):
        change(pod("p", version))
    assert untold == [False, True, False], "the older event is no change"
    cache.written(pod("p", 9, "a"))
    cache.retain_only(set(), 0.0, "8")
    assert cache.get("p") == Seen("p", 9, "a")
    cache.retain_only(set(), 1.0, "9")
    assert (cache.get("p"), cache.is_unconfirmed("p")) == (None, False)


def test_an_answer_that_is_later_than_the_watch_changes_nothing() -> None:
    cache = cache_of_pods()
    told = heard(cache)
    cache.written(pod("p", 1))
    assert cache.get("p") == Seen("p", 1, ""), "the very first version counts"
    cache.upsert(pod("p", 5, "a"))
    cache.written(pod("p", 5, "a"))
    assert (told, cache.is_unconfirmed("p")) == (["+p 1", ">p 5 a"], False)
    cache.remove(pod("p", 7))
    cache.written(pod("p", 7, "a"))
    cache.retain_only(set(), 0.0, "20")
    cache.written(pod("q", 12))
    assert dict(cache) == {}


def test_versions_that_are_not_numbers_are_ignored() -> None:
    cache, item = cache_of_pods(), pod("p", "opaque", "a")
    cache.upsert(pod("p", 1))
    cache.written(item)
    assert cache.get("p") == derive(item)
    cache.upsert(pod("q", "opaque"))
    cache.retain_only({"q"}, 0.0, "opaque")
    assert list(cache) == ["q"]


# Names and places


def test_an_object_whose_name_another_one_has_is_removed_first() -> None:
    """As a list shows it: it has the new one before it is complete."""
    cache = cache_of_pods()
    told, first, second = heard(cache), pod("first", 1, name="p"), pod("second", 3, name="p")
    cache.upsert(first)
    assert cache.find("p", "ns") == derive(first)
    cache.upsert(second)
    cache.retain_only({"second"}, 0.0, "4")
    assert (cache.find("p", "ns"), cache.find("p")) == (derive(second), None)
    cache.remove(second)
    assert cache.find("p", "ns") is None
    assert told == ["+first 1", "-first 1?", "+second 3", "-second 3"]
    second.metadata.namespace = ""
    cache.upsert(second)
    assert (cache.find("p"), cache.find("p", "ns")) == (derive(second), None)


def test_a_pod_that_has_lost_its_node_is_removed_first() -> None:
    """After an etcd was restored it waits again, or was bound elsewhere since."""
    cache = cache_of_pods()
    told = heard(cache)
    for version, node in enumerate(("", "a", "a", "b", ""), 1):
        cache.upsert(pod("p", version, node))
    assert told == ["+p 1", ">p 2 a", ">p 3 a", "-p 3 a?", "+p 4 b", "-p 4 b?", "+p 5"]
    assert (cache.find("p", "ns"), cache.by_group(BY_NODE, "a"), cache.by_group(BY_NODE, "b")) == (
        Seen("p", 5, ""),
        [],
        [],
    )


def test_a_list_older_than_the_events_removes_and_adds_all_objects() -> None:
    """It is of an etcd restored from a backup: what happened since has not happened."""
    cache = cache_of_pods()
    told = heard(cache)
    cache.upsert(pod("p", 3, "a"))
    cache.upsert(pod("q", 9))
    cache.upsert_unreadable(outline(pod("r", 9, "b")))
    told.clear()
    cache.retain_only({"p", "r"}, 0.0, "9")
    assert told == ["-q 9?"]
    cache.written(pod("untold", 1000))
    told.clear()
    cache.retain_only({"p", "r", "untold"}, 0.0, "8")
    assert told == ["-p 3 a?", "+p 3 a", "-r 9 whole-node?", "+r 9 whole-node", "-untold 1000?", "+untold 1000"]
    assert cache.is_stand_in("r")
    assert (cache.find("p", "ns"), cache.by_group(BY_NODE, "a")) == (Seen("p", 3, "a"), [Seen("p", 3, "a")])
    told.clear()
    cache.upsert(pod("untold", 10, "b"))
    cache.written(pod("p", 11, "b"))
    assert told == [">untold 10 b", "-p 3 a?", "+p 11 b"], "versions and places count from there"


# Subscribers


def test_a_handler_that_fails_stops_no_other_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    cache = cache_of_pods()

    class Failing:
        def __repr__(self) -> str:
            return "another one"

        def __call__(self, old: Seen | None, new: Seen | None) -> None:
            raise ValueError("broken")

    cache.subscribe(Failing().__call__)
    cache.subscribe(Failing())
    told = heard(cache)
    cache.upsert(pod("p", 1))
    assert told == ["+p 1"]
    first, second = caplog.messages
    assert "Failing.__call__ failed" in first
    assert second.startswith("another one failed")


def test_a_late_subscriber_is_refused() -> None:
    cache, listed = cache_of_pods(), cache_of_pods()
    cache.upsert(pod("p", 1))
    listed.retain_only(set(), 0.0, "1")
    for one in (cache, listed):
        with pytest.raises(RuntimeError, match="would miss"):
            heard(one)


def test_an_object_whose_deletion_mark_was_missed_has_it_before_it_is_removed() -> None:
    cache = cache_of_pods()
    told = heard(cache)
    cache.upsert(pod("gone", 1, "a"))
    cache.upsert_unreadable(outline(pod("never-read", 1, "a")))
    told.clear()
    for uid in ("gone", "never-read", "never-known"):
        last = pod(uid, 3, "a")
        last.metadata.deletion_timestamp = "1970-01-01T00:00:00Z"
        cache.remove(last)
    assert told == [">gone 3 a", "-gone 3 a", "-never-read 1 whole-node"]


def test_nothing_is_kept_of_removed_objects() -> None:
    def num_kept(cache: Cache[Pod, Seen]) -> int:
        return sum(len(part) for part in vars(cache).values() if isinstance(part, dict | set))

    cache = cache_of_pods()
    cache.upsert(pod("p", 1, "a"))
    cache.written(pod("q", 2, "a"))
    cache.upsert_unreadable(outline(pod("r", 3, "a")))
    for uid in "pqr":
        cache.remove(pod(uid, 4, "a"))
    assert num_kept(cache) == num_kept(cache_of_pods())


def test_an_object_that_can_not_be_decoded_keeps_its_last_version_or_has_a_stand_in() -> None:
    cache = cache_of_pods()
    real, told = heard(cache, stand_ins=False), heard(cache)
    cache.upsert(pod("known", 1, "a"))
    cache.upsert_unreadable(outline(pod("known", 2, "b")))
    cache.upsert_unreadable(outline(pod("never", 3, "b")))
    cache.upsert(pod("never", 4, "b"))
    cache.upsert(pod("never", 5, "b"))
    assert told == ["+known 1 a", "+never 3 whole-node", "-never 3 whole-node", "+never 4 b", ">never 5 b"]
    assert real == ["+known 1 a", "+never 4 b", ">never 5 b"]
    nodes = Cache(derive, keeps_unread=False)
    nodes.upsert(pod("p", 1))
    nodes.upsert_unreadable(outline(pod("p", 2)))
    assert dict(nodes) == {}


# Parts


def test_a_part_has_the_objects_of_its_group_only() -> None:
    cache, consumer, lists, told = cache_of_pods(), Fold(), list[tuple[set[str], float]](), list[str]()
    on_a = cache.group(BY_NODE, "a")
    on_a.subscribe(consumer, on_list=lambda uids, began: lists.append((uids, began)))
    on_a.subscribe(lambda old, new: told.append(f"{old or ''} > {new or ''}"))
    assert (dict(on_a), len(on_a)) == ({}, 0)
    for uid, node in (("p", ""), ("q", "b"), ("r", "a")):
        cache.upsert(pod(uid, 1, node))
    cache.upsert(pod("p", 2, "a"))
    cache.upsert(pod("r", 2, "a"))
    assert dict(on_a) == consumer == {"r": Seen("r", 2, "a"), "p": Seen("p", 2, "a")}
    cache.remove(pod("p", 3, "a"))
    cache.upsert(pod("r", 3, "b"))
    assert dict(on_a) == consumer == {}
    assert told == [" > r 1 a", " > p 2 a", "r 1 a > r 2 a", "p 2 a > ", "r 2 a > "]
    cache.retain_only({"q", "r"}, 7.0, "3")
    assert lists == [({"q", "r"}, 7.0)], "a list has the objects of all groups"


def test_an_object_that_leaves_a_part_counts_as_removed_there() -> None:
    by_version: Index[Seen] = Index("version", lambda seen: [str(seen.version), "all"])
    cache, told = cache_of_pods(), list[tuple[str, Seen | None, Seen | None]]()

    def note(group: str, old: Seen | None, new: Seen | None) -> None:
        told.append((group, old, new))

    for group in ("1", "2", "all"):
        cache.group(by_version, group).subscribe(partial(note, group))
    cache.upsert(pod("p", 1))
    cache.upsert(pod("p", 2))
    first, then = Seen("p", 1, ""), Seen("p", 2, "")
    assert told == [
        *(("1", None, first), ("all", None, first)),
        *(("1", first, None), ("2", None, then), ("all", first, then)),
    ]


def test_a_part_has_stand_ins_for_those_who_ask() -> None:
    cache, real, missed = cache_of_pods(), Fold(), list[bool]()
    held = cache.group(BY_NODE, "whole-node")
    held.subscribe(real)
    held.subscribe(lambda old, new: missed.append(held.removals_missed), stand_ins=True)
    cache.upsert_unreadable(outline(pod("p", 1, "a")))
    cache.retain_only(set(), 0.0, "2")
    assert (real, missed) == ({}, [False, True])


def test_a_part_by_a_new_index_needs_an_empty_cache() -> None:
    by_version: Index[Seen] = Index("version", lambda seen: [str(seen.version)])
    cache = cache_of_pods()
    first = cache.group(by_version, "1")
    cache.upsert(pod("p", 1))
    assert list(first) == list(cache.group(by_version, "1")) == ["p"]
    with pytest.raises(RuntimeError, match="another"):
        cache.group(Index("another", lambda seen: []), "1")
