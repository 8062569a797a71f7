"""By which proxy a server is reached, as client-go and Go decide it (`golang.org/x/net/http/httpproxy`)."""

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

from extender.kube.transport import CredentialsError

_PORTS: Final = {"http": 80, "https": 443}


def proxy_of(server: str, proxy_url: str, environ: Mapping[str, str]) -> str:
    """The proxy's address, "" for none; `proxy_url` is the kubeconfig's own. Raises CredentialsError."""
    if proxy_url:
        return _usable(proxy_url, "proxy-url")
    parts = urlsplit(server)
    variable = "HTTPS_PROXY" if parts.scheme == "https" else "HTTP_PROXY"
    proxy = _variable(environ, variable)
    if not proxy or _is_excepted(parts, _variable(environ, "NO_PROXY")):
        return ""
    return _usable(proxy if "://" in proxy else f"http://{proxy}", variable)


def _usable(proxy: str, named: str) -> str:
    try:
        parts = urlsplit(proxy)
        usable = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:  # it may hold a password, and is not told
        raise CredentialsError(f"{named} is no address of an HTTP proxy, such as http://proxy.example:3128")
    return proxy


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or environ.get(name.lower(), "")


def _is_excepted(server: SplitResult, no_proxy: str) -> bool:
    """Whether a server is reached directly: loopback always is."""
    host, port = (server.hostname or "").lower(), server.port or _PORTS.get(server.scheme, 0)
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(entry.strip().lower(), host, address, port) for entry in no_proxy.split(","))


def _matches(entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int) -> bool:
    """Whether an entry of NO_PROXY means a host: `*`, an address, a network, a name with all below it, `.below`."""
    if entry in ("", "*"):
        return entry == "*"
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, of_port = _with_port(entry)
    if of_port and of_port != str(port):
        return False
    if (excepted := _address(name)) is not None or address is not None:
        return excepted == address
    name = name.removeprefix("*")
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _with_port(entry: str) -> tuple[str, str]:
    """A host, and the port that stands behind it."""
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = entry.partition(":")
    return (entry, "") if ":" in port else (name, port)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
