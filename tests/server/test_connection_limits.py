"""Who has to leave where there are too many connections."""

from dataclasses import dataclass

from extender.server.connections import Doors, Limits


@dataclass(eq=False)
class One:
    """A connection."""

    address: str = "a"
    since: float = 0.0
    certified: bool = False
    scheduling: bool = False
    answering: bool = False
    left: bool = False

    def leave(self) -> None:
        self.left = True


def entered(limits: Limits, *connections: One) -> list[int]:
    """Which have left, once all are in."""
    doors = Doors(limits)
    for connection in connections:
        doors.enter(connection)
    left = [number for number, connection in enumerate(connections) if connection.left]
    assert doors.num_turned_out == len(left)
    return left


FEW = Limits(connections=100, connections_each=2)


def test_the_one_that_waits_longest_makes_room() -> None:
    assert entered(FEW, One(since=1), One(since=0), One(since=2)) == [1]


def test_others_have_room_of_their_own() -> None:
    assert entered(FEW, One(), One(), One("b"), One("b")) == []


def test_of_the_address_that_has_most() -> None:
    limits = Limits(connections=3, connections_each=3)
    assert entered(limits, One("b", since=-1), One(), One(since=1), One("c")) == [1]


def test_many_addresses_of_one_connection_each_push_out_nobody_who_called_verbs() -> None:
    limits = Limits(connections=4, connections_each=3)
    scheduler = [One(scheduling=True, since=-2), One(scheduling=True, since=-1)]
    assert entered(limits, *scheduler, *(One(f"pod-{number}", since=number) for number in range(4))) == [2, 3]


def test_who_called_verbs_goes_last_and_who_has_a_certificate_never() -> None:
    assert entered(FEW, One(scheduling=True), One(since=1), One(since=2)) == [1]
    assert entered(FEW, One(scheduling=True), One(scheduling=True, since=1), One(since=2)) == [0]
    assert entered(FEW, One(certified=True), One(answering=True), One(since=2)) == [2]


def test_who_has_left_counts_no_longer() -> None:
    doors, first = Doors(FEW), One()
    doors.enter(first)
    doors.enter(One())
    doors.leave(first)
    doors.leave(first)
    third = One()
    doors.enter(third)
    assert (third.left, doors.num_turned_out) == (False, 0)
