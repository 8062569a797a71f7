"""The addresses on which Kerf listens."""

import errno
import socket
from contextlib import ExitStack

import pytest

from extender.server.connections import ListenError, listen


def listening(host: str, port: int, opened: ExitStack) -> list[tuple[int, str, int]]:
    """Family, address and port of each socket, which are open until `opened` ends."""
    sockets = [opened.enter_context(one) for one in listen(host, port)]
    return [(one.family, *one.getsockname()[:2]) for one in sockets]


ANY = "0.0.0.0"  # noqa: S104


def test_an_unspecified_address_means_all_addresses_of_both_families_on_one_port() -> None:
    for host in ("", ANY, "::"):
        with ExitStack() as opened:
            (four, any4, port4), (six, any6, port6) = listening(host, 0, opened)
            assert (four, any4, six, any6) == (socket.AF_INET, ANY, socket.AF_INET6, "::")
            assert port4 == port6 > 0
            for family, address in ((four, "127.0.0.1"), (six, "::1")):
                with socket.socket(family) as client:
                    client.connect((address, port4))
    for host in ("127.0.0.1", "::1"):
        with ExitStack() as opened:
            assert [address for _, address, _ in listening(host, 0, opened)] == [host]


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_an_address_family_that_is_switched_off_is_left_out(
    family: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Missing(socket.socket):
        def bind(self, address: tuple[str, int]) -> None:  # type: ignore[override]
            if self.family == family:
                raise OSError(code, "switched off")
            super().bind(address)

    monkeypatch.setattr(socket, "socket", Missing)
    with ExitStack() as opened:
        ((left, _, port),) = listening(ANY, 0, opened)
        assert left != family
        assert port > 0


def test_an_address_that_can_not_be_listened_on_is_named() -> None:
    for host in ("127.0.0.1", ANY, "::"):
        with ExitStack() as opened:
            ((_, _, port),) = listening("127.0.0.1", 0, opened)
            with pytest.raises(ListenError, match=rf"port {port} of (127|0)\.0\.0\.[01] is taken"):
                listen(host, port)
            with socket.socket(socket.AF_INET6) as other:
                other.bind(("::1", port))  # nothing of the attempt is left
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(ListenError, match=host):
            listen(host, 0)
