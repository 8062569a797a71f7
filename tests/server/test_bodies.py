"""Bodies that are half read: how much memory they may take, and who is served all the while."""

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


# What the settings mean.


def test_limits_of_connections_are_what_they_are_called() -> None:
    made = _protocols(ServerSettings(request_s=3.0, max_connections=600, max_connections_each=17), body_bytes=5 * MIB)
    assert isinstance(made, partial)
    assert made.keywords["doors"].limits == Limits(
        request_s=3.0, answer_s=30.0, connections=600, connections_each=17, body_bytes=5 * MIB
    )


def test_so_many_connections_of_one_address_stay_and_so_many_in_all(tmp_path: Path) -> None:
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
    """A connection from one of the addresses of this machine."""
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


# Who is cut off.


@dataclass(eq=False)
class One:
    """A connection with a body on its way."""

    address: str = "a"
    certified: bool = False
    answering: bool = False
    left: bool = False

    def leave(self) -> None:
        self.left = True


def test_who_only_holds_what_he_can_makes_room_for_who_sends_in_earnest() -> None:
    pool = Bodies(POOL)
    holders = [One(f"holder-{number}") for number in range(5)]
    for number, holder in enumerate(holders):
        pool.came(holder, (10 + number) * MIB, 0.0, of_verb=False)
    scheduler = One("scheduler")
    for tenth in range(64):
        pool.came(scheduler, MIB, 5.0 + tenth / 100, of_verb=False)
    assert [one.left for one in (*holders, scheduler)] == [True, True, True, False, False, False]
    assert pool.num_bytes == (13 + 14 + 64) * MIB
    assert pool.num_cut_off == 3


def test_one_address_has_three_quarters_at_most() -> None:
    pool = Bodies(POOL)
    held, sent = One(), One()
    pool.came(held, 40 * MIB, 0.0, of_verb=False)
    pool.came(sent, 35 * MIB, 0.0, of_verb=False)
    assert not held.left, "100 * 0.75 = 75 MiB"
    pool.came(sent, 1 * MIB, 1.0, of_verb=False)
    assert (held.left, sent.left, pool.num_bytes) == (True, False, 36 * MIB)


def test_a_pause_of_the_machine_makes_nobody_slow() -> None:
    pool = Bodies(POOL)
    holders, api_server = [One(f"holder-{number}") for number in range(9)], One("api server")
    for number, holder in enumerate(holders):
        pool.came(holder, 11 * MIB, number / 100, of_verb=False)
    for now in (0.1, 0.6):
        pool.came(api_server, MIB, now, of_verb=False)
    assert (holders[0].left, api_server.left) == (True, False)


def test_bodies_of_a_flood_make_room_however_fast_they_come() -> None:
    pool, api_server = Bodies(64 * MIB), One("api server")
    flood = [One(f"holder-{number}") for number in range(200)]
    for number, holder in enumerate(flood):  # 800 MiB/s
        pool.came(holder, 4 * MIB, number / 200, of_verb=False)
        if number >= 150:
            pool.came(api_server, 100_000, number / 200 + 0.001, of_verb=False)
            for trickle in flood[140:number]:
                if not trickle.left:
                    pool.came(trickle, 1, number / 200 + 0.002, of_verb=False)
    assert not api_server.left
    assert pool.num_bytes <= 64 * MIB


def test_who_has_called_verbs_has_a_pool_of_his_own() -> None:
    pool = Bodies(POOL)
    pool.knows("scheduler")
    scheduler = One("scheduler")
    pool.came(scheduler, 60 * MIB, 0.0, of_verb=True)
    others = [One(f"pod-{number}") for number in range(30)]
    for number, other in enumerate(others):
        pool.came(other, 10 * MIB, float(number), of_verb=True)
    reader = One("scheduler")
    pool.came(reader, 70 * MIB, 60.0, of_verb=False)
    assert not scheduler.left
    assert not reader.left
    assert pool.num_bytes <= 2 * POOL


def test_who_is_answered_or_has_a_certificate_is_not_cut_off() -> None:
    pool = Bodies(POOL)
    first = [One("a", certified=True), One("b", answering=True)]
    for one in first:
        pool.came(one, 45 * MIB, 0.0, of_verb=False)
    newcomer = One("c")
    pool.came(newcomer, 20 * MIB, 100.0, of_verb=False)
    assert [one.left for one in (*first, newcomer)] == [False, False, True]


def test_what_has_ended_counts_no_longer() -> None:
    pool = Bodies(POOL)
    for _ in range(1000):
        one = One()
        pool.came(one, 70 * MIB, 0.0, of_verb=False)
        pool.ended(one)
        pool.ended(one)
        assert not one.left
    assert pool.num_bytes == 0


# The memory of a process.


def half_sent(server: Server, path: str, size: int, address: str) -> socket.socket:
    """A connection on which all of a body but its last bytes has been sent, as far as it was taken."""
    one = socket.create_connection(("127.0.0.1", server.port), timeout=20, source_address=(address, 0))
    with suppress(OSError):  # it may be cut off by then
        one.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{" % (path.encode(), size))
        one.sendall(b" " * (size - 2048))
    return one


def resident_mib(server: Server) -> float:
    """Memory that the process has."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def padded(num_bytes: int) -> bytes:
    """kube-scheduler's question with as many bytes as its whole nodes would have."""
    return BODY + b" " * (num_bytes - len(BODY))


@pytest.mark.parametrize(
    ("num_addresses", "known"),
    [pytest.param(1, False, id="a scheduler that begins"), pytest.param(12, True, id="one that has called before")],
)
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
