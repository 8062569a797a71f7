"""Namespaces take turns, and one whose pods are never bound gets no more than its share."""

from collections import Counter
from typing import NamedTuple

import pytest

from extender.planning.plans import Plan, PlanPod
from extender.planning.wait_reasons import Code
from extender.queueing.shares import Shares, Window
from tests.queueing.rigs import Rig
from tests.queueing.watches import Watched, pod

MAX_OPEN = 8


class Crowd(Rig):
    """A queue on a large cluster, and pods of many namespaces."""

    def __init__(self) -> None:
        super().__init__(max_open=MAX_OPEN)
        for number in range(16):
            self.node(f"n{number}", 64)

    def make(self, namespace: str, count: int = 1, gpus: int = 1) -> list[str]:
        """Gated pods of a namespace; their names."""
        first = len(self.api.pods)
        names = [f"p{first + number:05}" for number in range(count)]
        for name in names:
            self.pod(name, gpus, namespace=namespace)
        return names


@pytest.mark.parametrize("num_namespaces", [1, MAX_OPEN, MAX_OPEN + 1, 4 * MAX_OPEN])
def test_any_number_of_namespaces_is_served_in_turn(num_namespaces: int) -> None:
    rig = Crowd()
    for number in range(num_namespaces):
        rig.make(f"team-{number}", count=2)
    turns: list[str] = []
    while len(turns) < 2 * num_namespaces:
        rig.round()
        names = [name for name in rig.placed() if name in rig.queue.backlog.entries]
        assert 0 < len(names) <= MAX_OPEN
        turns += sorted(rig.api.pods[name]["metadata"]["namespace"] for name in names)
        for name in names:
            rig.bind(name)
        had = Counter(turns)
        if num_namespaces > MAX_OPEN:  # none has the next turn before all have had theirs
            assert max(had.values()) - min(had[f"team-{number}"] for number in range(num_namespaces)) <= 1
    assert Counter(turns) == dict.fromkeys((f"team-{number}" for number in range(num_namespaces)), 2)


@pytest.mark.parametrize("num_namespaces", [1, MAX_OPEN, 4 * MAX_OPEN])
def test_namespaces_of_pods_that_nobody_binds_stop_no_round(num_namespaces: int) -> None:
    """Each has pods for a scheduler that does not exist: those that are released never get their node."""
    rig = Crowd()
    for number in range(num_namespaces):
        rig.make(f"evil-{number}", count=4, gpus=0)
    waited: list[float] = []
    for _ in range(5):
        for _ in range(8):
            rig.round(0.5)  # more of them are released all the time
        (good,) = rig.make("good")
        since = rig.now
        while not rig.node_of(good):
            rig.round(0.25)
            assert rig.now - since < 60.0
        waited.append(rig.now - since)
        rig.bind(good)
    late = waited[1:] if num_namespaces > MAX_OPEN else waited  # until it is known that none of theirs is bound
    assert max(late) <= 1.0


# Limits by namespace


class Num(NamedTuple):
    """Pods of a namespace: released now, released two seconds ago, not planned yet, passed over for lack of room."""

    way: int = 0
    late: int = 0
    waits: int = 0
    no_room: int = 0


class Places:
    """`Shares` of some places, and pods by namespace."""

    def __init__(self, max_open: int = 16, **pods: Num) -> None:
        self._watched = Watched()
        self._num_made = 0
        self.shares = Shares(max_open, self._watched.backlog, lambda: self._watched.now)
        for namespace, num in pods.items():
            self.add(namespace, num)

    def add(self, namespace: str, num: Num) -> None:
        now, backlog = self._watched.now, self._watched.backlog
        for number in range(sum(num)):
            self._num_made += 1
            name = f"p{self._num_made}"
            backlog.upsert(pod(name, namespace=namespace))
            entry = backlog.entries[f"uid-{name}"]
            if number < num.way + num.late:
                entry.reserve("n")
                entry.open(now if number < num.way else now - 2.0)
                entry.was_opened()
            elif number >= num.way + num.late + num.waits:
                entry.pass_over(Code.FORBIDDEN.reason(), now)

    def later(self, seconds: float) -> None:
        self._watched.now += seconds

    def gone(self, namespace: str) -> None:
        """All its pods have their nodes, or are deleted."""
        for entry in list(self._watched.backlog.entries.values()):
            if entry.namespace == namespace:
                self._watched.backlog.remove(entry.pod)

    def window(self) -> Window:
        return self.shares.window(self._watched.backlog.waiting())

    def released(self, window: Window, *namespaces: str, fails: int = 0) -> bool:
        """Note a plan that releases a pod of each of these, while `fails` others find no room."""
        pods = tuple(PlanPod(f"{name}/p", 1, 1) for name in (*namespaces, *["no-room"] * fails))
        rows = (*(0 for _ in namespaces), *(-1 for _ in range(fails)))
        why = {len(namespaces) + number: Code.FORBIDDEN.reason() for number in range(fails)}
        return self.shares.note(window, Plan("greedy", 1, pods, rows, ((),) * len(pods), why))


UNBOUND_3 = {f"evil{number}": Num(late=2, waits=1) for number in range(3)}
ROWS: list[tuple[int, dict[str, Num], Window]] = [
    (16, {}, Window(16, {}, due=True)),
    # One namespace: a quarter of the places is worth a round, less is not.
    (16, {"a": Num(way=5, waits=20)}, Window(11, {}, due=True)),
    (16, {"a": Num(way=12, waits=1)}, Window(4, {}, due=True)),
    (16, {"a": Num(way=13, waits=1)}, Window(3, {}, due=False)),
    (15, {"a": Num(way=12, waits=1)}, Window(3, {}, due=False)),
    (16, {"a": Num(way=17, waits=1)}, Window(0, {}, due=False)),
    (16, {"a": Num(late=5, waits=20)}, Window(11, {}, due=True)),
    # Each of two has a half, and a quarter of its half is worth a round.
    (16, {"a": Num(waits=20), "b": Num(way=2, waits=1)}, Window(14, {"a": 8}, due=True)),
    (16, {"a": Num(way=8, waits=1), "b": Num(way=6, waits=2)}, Window(2, {"a": 0}, due=True)),
    (16, {"a": Num(way=8, waits=1), "b": Num(way=7, waits=1)}, Window(1, {"a": 0}, due=False)),
    (16, {"a": Num(way=8, waits=1), "b": Num(way=8, waits=1)}, Window(0, {"a": 0, "b": 0}, due=False)),
    (15, {"a": Num(way=6, waits=1), "b": Num(way=6, waits=1)}, Window(3, {}, due=False)),
    (16, {"a": Num(way=7, waits=1), "b": Num(way=5)}, Window(4, {}, due=True)),
    # Pods beyond a namespace's share don't reduce another's.
    (16, {"a": Num(way=10, waits=1), "b": Num(way=6, waits=3)}, Window(2, {"a": 0, "b": 2}, due=True)),
    # A namespace whose pods have no room takes no place, and has a share.
    (
        16,
        {"a": Num(waits=9), "b": Num(waits=9), "c": Num(no_room=9)},
        Window(16, {"a": 8, "b": 8, "c": 8}, due=True),
    ),
    (16, {"a": Num(no_room=17), "b": Num(no_room=16)}, Window(16, {"a": 16}, due=True)),
    # Namespaces with half a share unbound have a quarter of the places together, if there are others.
    (16, {"a": Num(late=3, waits=9), "b": Num(waits=9)}, Window(13, {"a": 5, "b": 8}, due=True)),
    (16, {"evil": Num(late=4, waits=9), "b": Num(waits=13)}, Window(12, {"evil": 0, "b": 12}, due=True)),
    (
        16,
        {"evil": Num(late=4, way=3, waits=9), "b": Num(way=5, waits=13)},
        Window(7, {"evil": 0, "b": 7}, due=True),
    ),
    (
        16,
        {"evil": Num(late=3, waits=1), "worse": Num(late=3, waits=9), "b": Num(waits=9)},
        Window(12, {"evil": 0, "worse": 0}, due=True),
    ),
    (
        16,
        {"evil": Num(late=4, waits=9), "worse": Num(late=4, waits=9)},
        Window(8, {"evil": 4, "worse": 4}, due=True),
    ),
    (16, {"evil": Num(late=8, waits=9), "b": Num(no_room=13)}, Window(12, {"evil": 0, "b": 12}, due=True)),
    (16, {"a": Num(late=5, waits=9), "b": Num(no_room=13)}, Window(11, {}, due=True)),
    # A remainder goes to namespaces whose pods get bound; among equals to none.
    (17, {"evil": Num(late=4, waits=9), "b": Num(waits=20)}, Window(13, {"evil": 0, "b": 13}, due=True)),
    (
        17,
        {"evil": Num(late=3, waits=9), "b": Num(waits=20), "c": Num(waits=20)},
        Window(14, {"evil": 1, "b": 6, "c": 6}, due=True),
    ),
    (
        17,
        {**UNBOUND_3, "b": Num(waits=20)},
        Window(14, {"evil0": 0, "evil1": 0, "evil2": 0, "b": 13}, due=True),
    ),
    # Whether a round is worthwhile for an unbound one depends on its own share.
    (
        32,
        {"evil": Num(late=7, waits=9), "b": Num(way=10, waits=6), "c": Num(way=9)},
        Window(6, {"evil": 1, "b": 2}, due=False),
    ),
    (
        16,
        {"evil": Num(late=3, waits=9), "b": Num(way=6, waits=1), "c": Num(way=6)},
        Window(1, {"evil": 1, "b": 0}, due=True),
    ),
    (1, {"evil": Num(late=1, waits=1), "b": Num(waits=2)}, Window(0, {"evil": 0, "b": 1}, due=False)),
]


def test_how_many_may_be_released_of_each() -> None:
    for max_open, pods, window in ROWS:
        assert Places(max_open, **pods).window() == window, (max_open, pods)


def test_no_more_than_their_part_goes_of_those_that_stay_unbound_however_many_they_are() -> None:
    places = Places(evil0=Num(late=2, waits=1))
    places.later(60.0)  # they take no places any more
    for number in range(1, 5):
        places.add(f"evil{number}", Num(late=1, waits=1))
    places.add("good", Num(way=10, waits=1))
    unbound = {f"evil{number}": 0 for number in range(5)}
    assert places.window() == Window(2, unbound, due=False), "good has most of its part, and the others all of theirs"


def test_of_those_that_stay_unbound_the_one_whose_turn_was_longest_ago_has_a_part() -> None:
    places = Places(16, **{f"evil{number}": Num(late=2, waits=1) for number in range(5)})
    places.later(60.0)  # they take no places any more
    places.add("good", Num(waits=1))
    turns = []
    for _ in range(3):
        places.later(1.0)
        parts = places.window().parts
        assert sum(parts.values()) == 4
        turns.append([name for name, part in sorted(parts.items()) if not part])
    assert turns == [["evil4"], ["evil3"], ["evil4"]]


def test_where_there_are_more_namespaces_than_places_one_that_had_a_turn_waits_for_the_others() -> None:
    places = Places(2, **dict.fromkeys("abc", Num(waits=2)))
    first = places.window()
    assert first == Window(2, {"a": 1, "b": 1, "c": 1}, due=True)
    assert not places.released(first, "a", "b", fails=1)
    second = places.window()
    assert second == Window(2, {"a": 0, "b": 0, "c": 1}, due=True)
    assert places.released(second, "c"), "all were looked at: those that waited may go on"
    assert places.window() == first
    assert not places.released(first, "a"), "none waited for the others"


def test_turns_begin_again_once_all_that_wait_have_had_theirs_or_there_are_places_for_all() -> None:
    for gone, parts in (("cd", True), ("", False)):
        places = Places(2, **dict.fromkeys("abcd", Num(waits=1)))
        places.released(places.window(), "a", "b")
        for name in gone:
            places.gone(name)
        places.add("x", Num(way=1))
        assert (places.window().parts == {}) is parts
    places = Places(2, **dict.fromkeys("abc", Num(waits=1)))
    places.released(places.window(), "a", "b")
    places.gone("c")
    assert places.window().parts == {}
    places.add("c", Num(waits=1))
    assert places.window().parts == {}, "that of those before is over"
    places.released(places.window(), "a", "b")
    places.gone("b")
    places.gone("c")
    assert places.window() == Window(2, {}, due=True)
    for name in "bc":
        places.add(name, Num(waits=1))
    assert places.window().parts == {}
    places.released(places.window(), "a", "b")
    places.gone("b")
    assert places.window().parts == {}, "as many places as namespaces, though a had its turn, and c has not"
