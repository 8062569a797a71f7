"""On which addresses Kerf listens."""

import errno
import socket
from contextlib import ExitStack

import pytest

from extender.server.connections import ListenError, listen


def listening(host: str, port: int, opened: ExitStack) -> list[tuple[int, str, int]]:
    """Family, address and port of each socket, which are open until `opened` ends."""
    sockets = [opened.enter_context(one) for one in listen(host, port)]
    return [(one.family, *one.getsockname()[:2]) for one in sockets]


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])  # noqa: S104
def test_an_unspecified_address_is_all_addresses_of_both_families_on_one_port(host: str) -> None:
    with ExitStack() as opened:
        (four, any4, port4), (six, any6, port6) = listening(host, 0, opened)
        assert (four, any4, six, any6) == (socket.AF_INET, "0.0.0.0", socket.AF_INET6, "::")  # noqa: S104
        assert port4 == port6 > 0
        for family, address in ((four, "127.0.0.1"), (six, "::1")):
            with socket.socket(family) as client:
                client.connect((address, port4))


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_family_that_the_machine_has_not_is_left_out(family: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing(socket.socket):
        def bind(self, address: tuple[str, int]) -> None:  # type: ignore[override]
            if self.family == family:
                raise OSError(code, "switched off")
            super().bind(address)

    monkeypatch.setattr(socket, "socket", Missing)
    with ExitStack() as opened:
        ((left, _, port),) = listening("0.0.0.0", 0, opened)  # noqa: S104
        assert left != family and port > 0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_loopback_is_one_address(host: str) -> None:
    with ExitStack() as opened:
        assert [address for _, address, _ in listening(host, 0, opened)] == [host]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::"])  # noqa: S104
def test_a_port_that_is_taken_is_named(host: str) -> None:
    with ExitStack() as opened:
        ((_, _, port),) = listening("127.0.0.1", 0, opened)
        with pytest.raises(ListenError, match=rf"port {port} of (127|0)\.0\.0\.[01] is taken"):
            listen(host, port)
        with socket.socket(socket.AF_INET6) as other:
            other.bind(("::1", port))  # nothing of the attempt is left


def test_a_host_that_is_not_of_this_machine() -> None:
    with pytest.raises(ListenError, match=r"192\.0\.2\.1 can't be listened on"):
        listen("192.0.2.1", 0)
    with pytest.raises(ListenError, match=r"no-such-host\.invalid is not an address of this machine"):
        listen("no-such-host.invalid", 0)
