"""Any number of namespaces is served in turn, and whoever lets pods go that nobody binds takes no more than a part."""

from collections import Counter

import pytest

from extender.kube.watches import PODS
from extender.planning.plans import Plan, PlanPod
from extender.planning.wait_reasons import Code
from extender.queueing.pods.objects import decode_pod
from extender.queueing.shares import Shares, Window
from tests.queueing.rigs import GATES, Rig
from tests.queueing.watches import Watched, pod

MAX_OPEN = 8


class Crowd(Rig):
    """A queue on a large cluster, and pods of many namespaces."""

    def __init__(self, max_open: int = MAX_OPEN) -> None:
        super().__init__(max_open=max_open)
        for number in range(16):
            self.node(f"n{number}", 64)
        self.num_made = 0

    def make(self, namespace: str, count: int = 1, gpus: int = 1, cpu: int = 1) -> list[str]:
        """Pods of a namespace, behind the gate; their names."""
        names = []
        for _ in range(count):
            self.num_made += 1
            names.append(f"p{self.num_made:05}")
            metadata = {"name": names[-1], "namespace": namespace, "uid": names[-1], "annotations": {}}
            spec = {
                "schedulingGates": GATES,
                "containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus, "cpu": cpu}}}],
            }
            self.api.pods[names[-1]] = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
            self.hub.cache(PODS).upsert(decode_pod(self.api.pods[names[-1]]))
        return names

    def gone(self, names: list[str]) -> list[str]:
        """Those that were let go for a node."""
        return [name for name in names if self.node_of(name)]


@pytest.mark.parametrize("num_namespaces", [1, MAX_OPEN - 1, MAX_OPEN, MAX_OPEN + 1, 4 * MAX_OPEN])
def test_any_number_of_namespaces_is_served_in_turn(num_namespaces: int) -> None:
    rig = Crowd()
    for number in range(num_namespaces):
        rig.make(f"team-{number}", count=2)
    turns: list[str] = []
    while len(turns) < 2 * num_namespaces:
        rig.round()
        gone = [name for name in rig.gone(list(rig.api.pods)) if name in rig.queue.backlog.entries]
        assert len(gone) <= MAX_OPEN
        assert gone  # each round
        turns += sorted(rig.api.pods[name]["metadata"]["namespace"] for name in gone)
        for name in gone:
            rig.bind(name)
        had = Counter(turns)
        if num_namespaces > MAX_OPEN:  # nobody has the next turn before all have had theirs
            assert max(had.values()) - min(had[f"team-{number}"] for number in range(num_namespaces)) <= 1
    assert Counter(turns) == dict.fromkeys((f"team-{number}" for number in range(num_namespaces)), 2)


@pytest.mark.parametrize("num_namespaces", [MAX_OPEN - 1, MAX_OPEN, MAX_OPEN + 1, 4 * MAX_OPEN])
def test_pods_that_no_node_will_ever_fit_take_no_turns(num_namespaces: int) -> None:
    rig = Crowd()
    for number in range(num_namespaces):
        rig.make(f"evil-{number}", gpus=65)
    rig.round()
    good = rig.make("good", count=2 * MAX_OPEN)
    rig.round()
    rig.round()
    assert len(rig.gone(good)) >= MAX_OPEN // 2  # no less than where nobody else waits for its turn


@pytest.mark.parametrize("num_namespaces", [1, 4, MAX_OPEN, 4 * MAX_OPEN])
def test_namespaces_of_pods_that_nobody_binds_stop_no_round(num_namespaces: int) -> None:
    """Each has pods for a scheduler that there is not: what is let go of them never gets its node."""
    rig = Crowd()
    for number in range(num_namespaces):
        rig.make(f"evil-{number}", count=4, gpus=0)
    waited: list[float] = []
    for _ in range(5):
        for _ in range(8):
            rig.round(0.5)  # more of them is let go all the time
        (good,) = rig.make("good")
        since = rig.now
        while not rig.gone([good]):
            rig.round(0.25)
            assert rig.now - since < 60.0
        waited.append(rig.now - since)
        rig.bind(good)
    late = waited[1:] if num_namespaces > MAX_OPEN else waited  # until it is known of them all that nobody binds theirs
    assert max(late) <= 1.0


def test_those_whose_pods_stay_unbound_are_served_too() -> None:
    """Their volumes take a minute each, perhaps: alone they have all places, beside others a part."""
    rig = Crowd()
    slow = rig.make("slow", count=40)
    rig.round()
    assert len(rig.gone(slow)) == MAX_OPEN
    rig.round(31.0)
    assert len(rig.gone(slow)) == 2 * MAX_OPEN
    for name in rig.gone(slow):
        rig.bind(name)
    others = rig.make("others", count=40)
    for _ in range(3):
        rig.round(3.0)
        for name in rig.gone(others):
            if name in rig.queue.backlog.entries:
                rig.bind(name)
    assert len(rig.gone(slow)) > 2 * MAX_OPEN
    assert len(rig.gone(others)) >= MAX_OPEN


def test_no_more_are_on_their_way_than_is_allowed_while_kube_scheduler_is_away() -> None:
    rig = Crowd()
    names = [name for number in range(4) for name in rig.make(f"team-{number}", count=20)]
    for _ in range(20):
        rig.round(1.0)
        assert len(rig.gone(names)) <= MAX_OPEN


# What each may let go, in numbers


class Places:
    """Sixteen places; pods as they are said to be, by namespace."""

    def __init__(self, max_open: int = 16) -> None:
        self._watched = Watched()
        self._num_made = 0
        self.shares = Shares(max_open, self._watched.backlog, lambda: self._watched.now)

    @classmethod
    def of(cls, pods: dict[str, dict[str, int]], max_open: int = 16) -> "Places":
        """With pods of each namespace, as of `add`."""
        places = cls(max_open)
        for namespace, said in pods.items():
            places.add(namespace, **said)
        return places

    def add(self, namespace: str, *, on_way: int = 0, late: int = 0, waits: int = 0, no_room: int = 0) -> None:
        """Pods that were let go just now, or two seconds ago, and that wait: those had no room, or were not looked at
        before."""
        now, backlog = self._watched.now, self._watched.backlog
        for number in range(on_way + late + waits + no_room):
            self._num_made += 1
            name = f"p{self._num_made}"
            backlog.upsert(pod(name, namespace=namespace))
            entry = backlog.entries[f"uid-{name}"]
            if number < on_way + late:
                entry.reserve("n")
                entry.open(now if number < on_way else now - 2.0)
                entry.was_opened()
            elif number >= on_way + late + waits:
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

    def let_go(self, window: Window, *namespaces: str, fails: int = 0) -> bool:
        """A plan by which pods of these go, and so many others find no room."""
        pods = tuple(PlanPod(f"{name}/p", 1, 1) for name in (*namespaces, *["no-room"] * fails))
        rows = (*(0 for _ in namespaces), *(-1 for _ in range(fails)))
        why = {len(namespaces) + number: Code.FORBIDDEN.reason() for number in range(fails)}
        return self.shares.note(window, Plan("greedy", 1, pods, rows, ((),) * len(pods), why))


@pytest.mark.parametrize(
    ("pods", "most", "parts", "due"),
    [
        pytest.param({}, 16, {}, True, id="nobody"),
        pytest.param({"a": {"on_way": 5, "waits": 20}}, 11, {}, True, id="alone"),
        pytest.param({"a": {"on_way": 12, "waits": 1}}, 4, {}, True, id="a quarter is worth a round"),
        pytest.param({"a": {"on_way": 13, "waits": 1}}, 3, {}, False, id="less is not"),
        pytest.param({"a": {"on_way": 17, "waits": 1}}, 0, {}, False, id="more than there are places"),
        pytest.param({"a": {"late": 5, "waits": 20}}, 11, {}, True, id="alone, and late"),
        pytest.param(
            {"a": {"waits": 20}, "b": {"on_way": 2, "waits": 1}}, 14, {"a": 8}, True, id="half of it for each of two"
        ),
        pytest.param(
            {"a": {"on_way": 8, "waits": 1}, "b": {"on_way": 6, "waits": 2}},
            2,
            {"a": 0},
            True,
            id="a quarter of a part is",
        ),
        pytest.param(
            {"a": {"on_way": 10, "waits": 1}, "b": {"on_way": 6, "waits": 3}},
            2,
            {"a": 0, "b": 2},
            True,
            id="whoever has more than its part takes nothing of another's",
        ),
        pytest.param(
            {"a": {"on_way": 8, "waits": 1}, "b": {"on_way": 7, "waits": 1}}, 1, {"a": 0}, False, id="one is left"
        ),
        pytest.param(
            {"a": {"on_way": 8, "waits": 1}, "b": {"on_way": 8, "waits": 1}}, 0, {"a": 0, "b": 0}, False, id="none is"
        ),
        pytest.param(
            {"a": {"waits": 9}, "b": {"waits": 9}, "c": {"no_room": 9}},
            16,
            {"a": 8, "b": 8, "c": 8},
            True,
            id="who had no room takes no place, and has a part",
        ),
        pytest.param(
            {"a": {"no_room": 17}, "b": {"no_room": 16}},
            16,
            {"a": 16},
            True,
            id="all places for each where none has room",
        ),
        pytest.param(
            {"a": {"late": 3, "waits": 9}, "b": {"waits": 9}}, 13, {"a": 5, "b": 8}, True, id="a few may be late"
        ),
        pytest.param(
            {"evil": {"late": 4, "waits": 9}, "b": {"waits": 13}},
            12,
            {"evil": 0, "b": 12},
            True,
            id="half a part unbound: a quarter of the places, once",
        ),
        pytest.param(
            {"evil": {"late": 4, "on_way": 3, "waits": 9}, "b": {"on_way": 5, "waits": 13}},
            7,
            {"evil": 0, "b": 7},
            True,
            id="what they have on the way beyond that takes nothing of others",
        ),
        pytest.param(
            {"evil": {"late": 3, "waits": 1}, "worse": {"late": 3, "waits": 9}, "b": {"waits": 9}},
            12,
            {"evil": 0, "worse": 0},
            True,
            id="that quarter is for all of them",
        ),
        pytest.param(
            {"evil": {"late": 4, "waits": 9}, "worse": {"late": 4, "waits": 9}},
            8,
            {"evil": 4, "worse": 4},
            True,
            id="all places where there is nobody else",
        ),
        pytest.param(
            {"evil": {"late": 8, "waits": 9}, "b": {"no_room": 13}},
            12,
            {"evil": 0, "b": 12},
            True,
            id="those without room are somebody, too",
        ),
    ],
)
def test_how_many_may_be_let_go_of_each(
    pods: dict[str, dict[str, int]], most: int, parts: dict[str, int], due: bool
) -> None:
    assert Places.of(pods).window() == Window(most, parts, due)


@pytest.mark.parametrize(
    ("max_open", "pods", "window"),
    [
        pytest.param(15, {"a": {"on_way": 12, "waits": 1}}, Window(3, {}, due=False), id="less than a quarter, alone"),
        pytest.param(
            15,
            {"a": {"on_way": 6, "waits": 1}, "b": {"on_way": 6, "waits": 1}},
            Window(3, {}, due=False),
            id="less than a quarter, of two",
        ),
        pytest.param(
            16, {"a": {"on_way": 7, "waits": 1}, "b": {"on_way": 5}}, Window(4, {}, due=True), id="a quarter of all is"
        ),
        pytest.param(
            17,
            {"evil": {"late": 4, "waits": 9}, "b": {"waits": 20}},
            Window(13, {"evil": 0, "b": 13}, due=True),
            id="a place that does not divide is of those that are bound",
        ),
        pytest.param(
            17,
            {"evil": {"late": 3, "waits": 9}, "b": {"waits": 20}, "c": {"waits": 20}},
            Window(14, {"evil": 1, "b": 6, "c": 6}, due=True),
            id="and of them nobody has it",
        ),
        pytest.param(
            17,
            {**{f"evil-{number}": {"late": 2, "waits": 1} for number in range(3)}, "b": {"waits": 20}},
            Window(14, {"evil-0": 0, "evil-1": 0, "evil-2": 0, "b": 13}, due=True),
            id="of the unbound neither",
        ),
        pytest.param(
            16,
            {"a": {"late": 5, "waits": 9}, "b": {"no_room": 13}},
            Window(11, {}, due=True),
            id="half of all places is much where nobody else takes any",
        ),
        pytest.param(
            32,
            {"evil": {"late": 7, "waits": 9}, "b": {"on_way": 10, "waits": 6}, "c": {"on_way": 9}},
            Window(6, {"evil": 1, "b": 2}, due=False),
            id="whoever is unbound is served as by its own part",
        ),
        pytest.param(
            16,
            {"evil": {"late": 3, "waits": 9}, "b": {"on_way": 6, "waits": 1}, "c": {"on_way": 6}},
            Window(1, {"evil": 1, "b": 0}, due=True),
            id="one place is worth a round for whom it is a quarter",
        ),
    ],
)
def test_how_many_may_be_let_go_at_the_edges(max_open: int, pods: dict[str, dict[str, int]], window: Window) -> None:
    assert Places.of(pods, max_open).window() == window


def test_no_more_than_their_part_goes_of_those_that_stay_unbound_however_many_they_are() -> None:
    places = Places()
    places.add("evil-0", late=2, waits=1)
    places.later(60.0)  # they take no places any more
    for number in range(1, 5):
        places.add(f"evil-{number}", late=1, waits=1)
    places.add("good", on_way=10, waits=1)
    unbound = {f"evil-{number}": 0 for number in range(5)}
    assert places.window() == Window(2, unbound, due=False), "good has most of its part, and the others all of theirs"


def test_where_there_is_one_place_each_has_it_whole() -> None:
    places = Places(max_open=1)
    places.add("evil", late=1, waits=1)
    places.add("b", waits=2)
    assert places.window() == Window(0, {"evil": 0, "b": 1}, due=False)


def test_of_those_that_stay_unbound_whose_turn_was_longest_ago_has_a_part() -> None:
    places = Places()
    for number in range(5):
        places.add(f"evil-{number}", late=2, waits=1)
    places.later(60.0)  # they take no places any more
    places.add("good", waits=1)
    turns = []
    for _ in range(3):
        places.later(1.0)
        parts = places.window().parts
        assert sum(parts.values()) == 4
        turns.append([name for name, part in sorted(parts.items()) if not part])
    assert turns == [["evil-4"], ["evil-3"], ["evil-4"]]


def test_where_there_are_more_namespaces_than_places_who_had_a_turn_waits_for_the_others() -> None:
    places = Places(max_open=2)
    for name in "abc":
        places.add(name, waits=2)
    first = places.window()
    assert first == Window(2, {"a": 1, "b": 1, "c": 1}, due=True)
    assert not places.let_go(first, "a", "b", fails=1)
    second = places.window()
    assert second == Window(2, {"a": 0, "b": 0, "c": 1}, due=True)
    assert places.let_go(second, "c"), "all were looked at: who waited may go on"
    assert places.window() == first
    assert not places.let_go(first, "a"), "nobody waited for the others"


def test_turns_begin_anew_once_all_that_wait_have_had_theirs_or_there_are_places_for_all() -> None:
    for others, turn in (("ab", True), ("abcd", False)):
        places = Places(max_open=2)
        for name in "abcd":
            places.add(name, waits=1)
        places.let_go(places.window(), "a", "b")
        for name in set("abcd") - set(others):
            places.gone(name)
        places.add("x", on_way=1)
        assert (places.window().parts == {}) is turn
    places = Places(max_open=2)
    for name in "abc":
        places.add(name, waits=1)
    places.let_go(places.window(), "a", "b")
    places.gone("c")
    assert places.window().parts == {}
    places.add("c", waits=1)
    assert places.window().parts == {}, "that of those before is over"
    places.let_go(places.window(), "a", "b")
    places.gone("b")
    places.gone("c")
    assert places.window() == Window(2, {}, due=True)
    places.add("b", waits=1)
    places.add("c", waits=1)
    assert places.window().parts == {}


def test_where_there_are_as_many_places_as_namespaces_nobody_waits_for_the_others() -> None:
    places = Places(max_open=2)
    for name in "abc":
        places.add(name, waits=1)
    places.let_go(places.window(), "a", "b")
    places.gone("b")
    assert places.window().parts == {}, "though a had its turn, and c has not"
