"""Which connections are closed if there are too many."""

from dataclasses import dataclass

from extender.server.connections import Limits, OpenConnections


@dataclass(eq=False)
class One:
    """A connection."""

    address: str = "a"
    since: float = 0.0
    certified: bool = False
    scheduling: bool = False
    answering: bool = False
    left: bool = False

    def abort(self) -> None:
        self.left = True


def entered(limits: Limits, *connections: One) -> list[int]:
    """Which are closed once all are open."""
    opened = OpenConnections(limits)
    for connection in connections:
        opened.add(connection)
    left = [number for number, connection in enumerate(connections) if connection.left]
    assert opened.num_evicted == len(left)
    return left


FEW = Limits(connections=100, connections_each=2)


def test_the_longest_idle_connection_of_the_address_with_most_is_closed() -> None:
    assert entered(FEW, One(since=1), One(since=0), One(since=2)) == [1]
    assert entered(FEW, One(), One(), One("b"), One("b")) == []
    limits = Limits(connections=3, connections_each=3)
    assert entered(limits, One("b", since=-1), One(), One(since=1), One("c")) == [1]


def test_connections_of_verbs_are_closed_last_and_those_with_a_certificate_never() -> None:
    assert entered(FEW, One(scheduling=True), One(since=1), One(since=2)) == [1]
    assert entered(FEW, One(scheduling=True), One(scheduling=True, since=1), One(since=2)) == [0]
    assert entered(FEW, One(certified=True), One(answering=True), One(since=2)) == [2]
    limits = Limits(connections=4, connections_each=3)
    scheduler = [One(scheduling=True, since=-2), One(scheduling=True, since=-1)]
    assert entered(limits, *scheduler, *(One(f"pod-{number}", since=number) for number in range(4))) == [2, 3]


def test_a_closed_connection_does_not_count() -> None:
    opened, first, third = OpenConnections(FEW), One(), One()
    opened.add(first)
    opened.add(One())
    opened.remove(first)
    opened.remove(first)
    opened.add(third)
    assert (third.left, opened.num_evicted) == (False, 0)
