"""Half-sent bodies take bounded memory, and others are served meanwhile."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from extender.core.resources.quantities import MIB
from extender.server.connections import Bodies, Limits
from extender.server.run import _protocols
from extender.settings.server import ServerSettings
from tests.api import bodies
from tests.api.bodies import pod
from tests.api.processes import Server, ready_demo, request

POOL = 100 * MIB
BODY = bodies.args(pod(gpus=2), ["h100-0", "a100-0", "t4-0", "cpu-0"])


def test_settings_become_limits() -> None:
    made = _protocols(
        ServerSettings(request_s=3.0, max_connections=600, max_connections_each=17), {}, body_bytes=5 * MIB
    )
    assert isinstance(made, partial)
    assert made.keywords["opened"].limits == Limits(
        request_s=3.0, answer_s=30.0, connections=600, connections_each=17, body_bytes=5 * MIB
    )


def test_connections_of_one_address_and_in_all_are_limited(tmp_path: Path) -> None:
    limits = ["server.max_connections=40", "server.max_connections_each=12", "server.request_s=60"]
    with ready_demo(tmp_path / "log", *limits) as server, ExitStack() as opened:
        of_address = [
            [opened.enter_context(connected(server, f"127.0.0.{address}")) for _ in range(20)]
            for address in range(2, 7)
        ]
        server.wait_for(lambda: sum(map(num_open, of_address)) <= 40)
        assert sum(map(num_open, of_address)) == 40
        assert max(map(num_open, of_address)) <= 12


@contextmanager
def connected(server: Server, address: str = "127.0.0.1") -> Iterator[socket.socket]:
    """A connection from a loopback address."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20, source_address=(address, 0)) as one:
        yield one


def num_open(connections: Sequence[socket.socket]) -> int:
    """How many the server has not closed."""
    return sum(not is_closed(one) for one in connections)


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(20)


# Which bodies are cut off


@dataclass(eq=False)
class One:
    """A connection with a body on its way."""

    address: str = "a"
    certified: bool = False
    answering: bool = False
    left: bool = False

    def abort(self) -> None:
        self.left = True


class Pool(Bodies):
    def take(self, one: One, mib: float, now: float, *, of_verb: bool = False) -> None:
        """Some MiB of a body arrive."""
        self.add_chunk(one, int(mib * MIB), now, of_verb=of_verb)


def holders(number: int) -> list[One]:
    return [One(f"holder-{index}") for index in range(number)]


def test_bodies_that_stand_still_make_room_for_those_that_arrive() -> None:
    pool, held, scheduler = Pool(POOL), holders(5), One("scheduler")
    for number, holder in enumerate(held):
        pool.take(holder, 10 + number, 0.0)
    for tenth in range(64):
        pool.take(scheduler, 1, 5.0 + tenth / 100)
    assert [one.left for one in (*held, scheduler)] == [True, True, True, False, False, False]
    assert (pool.num_bytes, pool.num_aborted) == ((13 + 14 + 64) * MIB, 3)


def test_one_address_has_three_quarters_at_most() -> None:
    pool, held, sent = Pool(POOL), One(), One()
    pool.take(held, 40, 0.0)
    pool.take(sent, 35, 0.0)
    assert not held.left, "100 * 0.75 = 75 MiB"
    pool.take(sent, 1, 1.0)
    assert (held.left, sent.left, pool.num_bytes) == (True, False, 36 * MIB)


def test_a_pause_of_the_machine_makes_no_sender_slow() -> None:
    pool, held, api_server = Pool(POOL), holders(9), One("api server")
    for number, holder in enumerate(held):
        pool.take(holder, 11, number / 100)
    for now in (0.1, 0.6):
        pool.take(api_server, 1, now)
    assert (held[0].left, api_server.left) == (True, False)


def test_bodies_of_a_flood_make_room_however_fast_they_come() -> None:
    pool, flood, api_server = Pool(64 * MIB), holders(200), One("api server")
    for number, holder in enumerate(flood):  # 800 MiB/s
        pool.take(holder, 4, number / 200)
        if number >= 150:
            pool.take(api_server, 0.1, number / 200 + 0.001)
            for trickle in flood[140:number]:
                if not trickle.left:
                    pool.add_chunk(trickle, 1, number / 200 + 0.002, of_verb=False)
    assert not api_server.left
    assert pool.num_bytes <= 64 * MIB


def test_addresses_that_have_called_verbs_have_their_own_pool() -> None:
    pool, scheduler, reader = Pool(POOL), One("scheduler"), One("scheduler")
    pool.add_caller("scheduler")
    pool.take(scheduler, 60, 0.0, of_verb=True)
    for number, other in enumerate(holders(30)):
        pool.take(other, 10, float(number), of_verb=True)
    pool.take(reader, 70, 60.0)
    assert (scheduler.left, reader.left) == (False, False)
    assert pool.num_bytes <= 2 * POOL


def test_a_connection_that_is_answered_or_has_a_certificate_is_not_cut_off() -> None:
    pool, newcomer = Pool(POOL), One("c")
    first = [One("a", certified=True), One("b", answering=True)]
    for one in first:
        pool.take(one, 45, 0.0)
    pool.take(newcomer, 20, 100.0)
    assert [one.left for one in (*first, newcomer)] == [False, False, True]


def test_a_body_that_has_ended_does_not_count() -> None:
    pool = Pool(POOL)
    for _ in range(1000):
        one = One()
        pool.take(one, 70, 0.0)
        pool.remove(one)
        pool.remove(one)
        assert not one.left
    assert pool.num_bytes == 0


# The memory of a process


def half_sent(server: Server, path: str, size: int, address: str) -> socket.socket:
    """A connection on which a body was sent but for its last bytes, as far as the server reads it."""
    one = socket.create_connection(("127.0.0.1", server.port), timeout=20, source_address=(address, 0))
    with suppress(OSError):  # it may be cut off by then
        one.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{" % (path.encode(), size))
        one.sendall(b" " * (size - 2048))
    return one


def resident_mib(server: Server) -> float:
    """Peak resident memory of the process."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def padded(num_bytes: int) -> bytes:
    """A request of kube-scheduler that is as large as with whole nodes."""
    return BODY + b" " * (num_bytes - len(BODY))


@pytest.mark.parametrize(("num_addresses", "known"), [(1, False), (12, True)], ids=["new scheduler", "known scheduler"])
def test_half_sent_lists_of_nodes_take_bounded_memory_and_kube_scheduler_is_served(
    tmp_path: Path, num_addresses: int, known: bool
) -> None:
    with ready_demo(tmp_path / "log", "server.request_s=60") as server, ExitStack() as opened:
        if known:
            with server.connection() as scheduler:
                assert request(scheduler, "POST", "/filter", BODY).json()["Error"] == ""
        before_mib = resident_mib(server)
        whole = padded(64 * MIB)
        for number in range(12):
            address = f"127.0.1.{1 + number % num_addresses}"
            with socket.create_connection(("127.0.0.1", server.port), source_address=(address, 0)) as small:
                small.sendall(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
                small.recv(4096)  # the attacker is known too
            opened.enter_context(half_sent(server, "/filter", 63 * MIB, address))
            if number % 6 == 5:
                with server.connection() as scheduler:
                    answer = request(scheduler, "POST", "/filter", whole)
                assert (answer.status, answer.json()["Error"]) == (200, "")
        # 2 x 128 MiB on their way, and one that is read: 64 MiB, and once more as it is put together.
        assert resident_mib(server) - before_mib < 2 * 128 + 2 * 64 + 120
