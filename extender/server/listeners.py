"""The sockets on which Kerf listens."""

import errno
import socket
from typing import Any, Final

_ALL: Final = ("", "0.0.0.0", "::")  # noqa: S104 - as asked
"""Hosts that stand for all interfaces and both families of addresses, as they do for Kubernetes' own servers."""

_BACKLOG: Final = 2048
_NOT_THERE: Final = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT}
"""Errors of a machine on which a family of addresses is switched off."""


class ListenError(Exception):
    """A port can't be listened on; says which, and why."""


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets, one for each address that the host stands for, all on the same port; 0 picks a free one.

    Of 0.0.0.0 and :: those that the machine has: IPv4, IPv6 or both. Raises ListenError.
    """
    if host in _ALL:
        addresses: list[tuple[int, tuple[Any, ...]]] = [(socket.AF_INET, ("0.0.0.0", 0)), (socket.AF_INET6, ("::", 0))]  # noqa: S104
    else:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise ListenError(f"{host} is no address of this machine: {error.strerror}") from None
        addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    sockets: list[socket.socket] = []
    for position, (family, address) in enumerate(addresses, 1):
        try:
            sockets.append(_opened(family, address, port))
        except OSError as error:
            if error.errno in _NOT_THERE and (sockets or position < len(addresses)):
                continue
            for one in sockets:
                one.close()
            why = (
                "is taken (address already in use)"
                if error.errno == errno.EADDRINUSE
                else f"can't be listened on: {error.strerror}"
            )
            raise ListenError(f"port {port} of {address[0]} {why}") from None
        port = sockets[0].getsockname()[1]
    return sockets


def _opened(family: int, address: tuple[Any, ...], port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        made.bind((address[0], port, *address[2:]))
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made
