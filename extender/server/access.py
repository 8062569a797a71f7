"""Access control and rate limits of the page, explanations, what-if, and everything else that people call.

Clients on loopback, or with a token or a certificate, have access; probes are open. Calls of kube-scheduler and the
API server don't get here (`routes.KerfApp`). The token file is read again when it changes. Each client has a rate limit
and a limit of concurrent calls, in bounded memory; the library `limits` bounds neither.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from extender.server.connections import CLIENT_CERTIFICATE
from extender.settings.access import AccessSettings, OpenTo

logger = logging.getLogger(__name__)

_MIN_BYTES: Final = 16
_MAX_BYTES: Final = 1 << 20

_Stamp = tuple[int, int, int]


class TokenError(Exception):
    """A token file can't be used; the message says how to correct it and quotes nothing from it."""


class Tokens:
    """The tokens in a file, one per line. None is accepted while the file can't be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: _Stamp | None = None
        self._digests: list[bytes] = []
        self._fault = ""

    def load(self) -> None:
        """Read the file. Raises TokenError."""
        self._stamp, self._digests = None, []
        try:
            state = self._path.stat()
            lines = self._path.read_bytes()[: _MAX_BYTES + 1].splitlines() if state.st_size <= _MAX_BYTES else None
        except OSError as error:
            raise TokenError(f"{self._path}: {error.strerror}; write one token per line into it") from None
        if lines is None:
            raise TokenError(f"{self._path}: larger than 1 MiB; write one token per line")
        tokens = [line.strip() for line in lines if line.strip() and not line.startswith(b"#")]
        if any(len(token) < _MIN_BYTES for token in tokens):
            raise TokenError(
                f"{self._path}: a token has fewer than {_MIN_BYTES} characters; make one with `openssl rand -hex 32`"
            )
        self._stamp = state.st_mtime_ns, state.st_ino, state.st_size
        self._digests = [hashlib.sha256(token).digest() for token in tokens]

    def holder(self, token: bytes) -> str:
        """Return a name for the token's holder, "" if it is not in the file. Takes constant time."""
        self._refresh()
        sent = hashlib.sha256(token).digest()
        matching = [digest for digest in self._digests if hmac.compare_digest(digest, sent)]
        return f"token {matching[0][:4].hex()}" if matching else ""

    def _refresh(self) -> None:
        """Load the file if it has changed. Follows symlinks, by which Kubernetes updates a mounted Secret."""
        try:
            state = self._path.stat()
            if self._stamp == (state.st_mtime_ns, state.st_ino, state.st_size):
                return
            self.load()
            fault = ""
        except (OSError, TokenError) as error:
            self._stamp, self._digests = None, []
            fault = str(error)
        if fault and fault != self._fault:
            logger.warning("no token is accepted until the token file can be read: %s", fault)
        self._fault = fault


_MAX_CLIENTS: Final = 1024
_BURST: Final = 200
"""Calls that a client may make in a burst beyond access.calls_per_s."""
_AT_ONCE: Final = 32
"""Concurrent calls of a client, open streams included."""
MAX_BODY_MIB: Final = 16
"""Largest request body, in MiB."""


class Rates:
    """A token bucket for each client; the least recent clients are forgotten."""

    def __init__(self, *, per_s: float, burst: int, at_once: int, clock: Callable[[], float]) -> None:
        """With `per_s` 0 only concurrent calls are limited."""
        self._per_s = per_s
        self._burst = burst
        self._at_once = at_once
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # calls left, and when
        self._under_way: Counter[str] = Counter()

    def wait_s(self, client: str) -> float:
        """Take a call from a client's bucket; returns 0, or the seconds until one is available."""
        if not self._per_s:
            return 0.0
        now = self._clock()
        left, at = self._buckets.get(client, (float(self._burst), now))
        left = min(left + (now - at) * self._per_s, self._burst)
        taken = left >= 1
        self._buckets[client] = (left - 1 if taken else left), now
        self._buckets.move_to_end(client)
        if len(self._buckets) > _MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1 - left) / self._per_s

    def begin(self, client: str) -> bool:
        """Count a call that begins; False if the client has too many concurrent calls."""
        if self._under_way[client] >= self._at_once:
            return False
        self._under_way[client] += 1
        return True

    def end(self, client: str) -> None:
        """Count a call that has ended."""
        self._under_way[client] -= 1
        if not self._under_way[client]:
            del self._under_way[client]

    @property
    def num_clients(self) -> int:
        """Number of clients in memory."""
        return len(self._buckets.keys() | self._under_way.keys())


Header = tuple[bytes, bytes]
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

PROBES: Final = frozenset({"/healthz", "/readyz", "/syncz"})
METRICS: Final = "/metrics"
_PAGE_FILES: Final = "/page/"
_FILES_A_CALL: Final = 10
"""The page has about forty files, and is blank if one is refused."""
_PAGES: Final = frozenset({"/", "/docs"})
"""Other sites may link to these: the browser shows them and reveals nothing to the other site."""
OPERATOR: Final = "kerf.operator"
"""Scope key: whether the caller is an operator."""
_CLIENTS_OF_A_NETWORK: Final = 64
"""Prefix length of IPv6 clients: one machine may have all addresses of such a network."""
_RESPONSE_HEADERS: Final = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
]
_CHALLENGES: Final = (
    (b"www-authenticate", b'Bearer realm="Kerf"'),
    (b"www-authenticate", b'Basic realm="Kerf: any user name, a token as password"'),  # for browsers
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal, with a sentence that says what to do."""

    status: int
    detail: str
    headers: tuple[Header, ...] = ()


_NO_OPERATORS: Final = Refusal(403, "moving pods is disabled: set access.apply_token_file")
_NO_OPERATOR: Final = Refusal(
    401,
    "for operators: send a token from access.apply_token_file as `Authorization: Bearer TOKEN`",
    _CHALLENGES[:1],
)


class Guard:
    """ASGI middleware that checks callers and limits their rates."""

    def __init__(
        self,
        app: ASGIApp,
        settings: AccessSettings,
        operated: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
        *,
        burst: int = _BURST,
        at_once: int = _AT_ONCE,
    ) -> None:
        """`operated` are the paths for operators only."""
        self._app, self._operated = app, operated
        self._open_to_all = settings.open_to is OpenTo.ALL
        self._hosts = frozenset(settings.hosts)
        self._tokens = Tokens(settings.token_file) if settings.token_file else None
        self._operators = Tokens(settings.apply_token_file) if settings.apply_token_file else None
        per_s = settings.calls_per_s
        self._at_once = at_once
        self._rates = Rates(per_s=per_s, burst=burst, at_once=at_once, clock=clock)
        self._file_rates = Rates(per_s=_FILES_A_CALL * per_s, burst=_FILES_A_CALL * burst, at_once=at_once, clock=clock)
        self._open = PROBES | ({METRICS} if settings.metrics is OpenTo.ALL else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open:
            await self._app(scope, receive, send)
            return
        client, refusal = self._check(scope)
        is_page_file = refusal is None and scope["path"].startswith(_PAGE_FILES)  # token guesses count as calls
        rates = self._file_rates if is_page_file else self._rates
        if wait_s := rates.wait_s(client):
            refusal = too_many("setting access.calls_per_s", wait_s)
        elif refusal is None and not self._rates.begin(client):
            refusal = too_many(f"{self._at_once} concurrent calls", 1.0)
        if refusal is not None:
            await refuse(refusal, send)
            return

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_RESPONSE_HEADERS]
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        finally:
            self._rates.end(client)

    def _check(self, scope: Scope) -> tuple[str, Refusal | None]:
        """Return the client's name for rate limits, and the refusal, if any."""
        address = _address(scope)
        client = _client_network(address)
        headers = dict(scope["headers"])
        if operator := self._operator(headers):
            scope[OPERATOR] = True
            return operator, None
        if refusal := _refuse_cross_site(scope["path"], headers):
            return f"{client}, pages of other sites", refusal
        if scope["path"] in self._operated:
            return client, _NO_OPERATORS if self._operators is None else _NO_OPERATOR
        if self._open_to_all:
            return client, None
        if self._tokens is not None and (token := _token(headers.get(b"authorization", b""))):
            holder = self._tokens.holder(token)
            unknown = Refusal(401, "this token is not in access.token_file", _CHALLENGES)
            return holder or client, None if holder else unknown
        if scope.get("state", {}).get(CLIENT_CERTIFICATE):
            return client, None
        if address is not None and address.is_loopback:
            refusal = _refuse_rebound(headers, self._hosts)
            return f"{client}, pages of other sites" if refusal else client, refusal
        if self._tokens is not None:
            detail = "send a token as `Authorization: Bearer TOKEN`, or as a password with any user name"
            return client, Refusal(401, detail, _CHALLENGES)
        return client, Refusal(
            403,
            "open to clients on loopback only: use `kubectl port-forward`, or allow others with access.token_file or "
            "server.tls_client_ca_file (docs/reference/access.md)",
        )

    def _operator(self, headers: dict[bytes, bytes]) -> str:
        """Return the operator's name, "" for others. Needs a bearer token: browsers send passwords by themselves."""
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        return (
            self._operators.holder(token.strip()) if self._operators is not None and scheme.lower() == b"bearer" else ""
        )


def foreign_page(scope: Scope, hosts: Collection[str]) -> Refusal | None:
    """Refuse a call of a verb that a browser makes for another site's page."""
    headers = dict(scope["headers"])
    if refusal := _refuse_cross_site(scope["path"], headers):
        return refusal
    # Browsers send an origin with every POST; kube-scheduler never does.
    return _refuse_rebound(headers, hosts) if b"origin" in headers else None


def _refuse_cross_site(path: str, headers: dict[bytes, bytes]) -> Refusal | None:
    """Refuse other sites' requests by Sec-Fetch headers; those for images and scripts have no origin."""
    site = headers.get(b"sec-fetch-site", b"none")
    if site in (b"none", b"same-origin"):  # typed, bookmarked, or from Kerf's page
        return None
    if (
        path in _PAGES
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    ):
        return None  # a link
    return Refusal(403, f"called by a page of another site ({site[:20].decode('latin-1')}), which is not allowed")


def _refuse_rebound(headers: dict[bytes, bytes], hosts: Collection[str]) -> Refusal | None:
    """Refuse requests of other sites through a browser on this machine, by their host or origin.

    DNS rebinding: a site's name may resolve to loopback once its page is loaded. The host is then that name.
    """
    authority = headers.get(b"host", b"localhost")
    host = _host_name(authority)
    if host not in hosts and not _is_local(host):
        return Refusal(403, f"host {host[:80]!r}: use localhost or an IP address, or add the host to access.hosts")
    origin = headers.get(b"origin")
    if origin is not None and origin.partition(b"//")[2] != authority:
        return Refusal(403, f"origin {origin[:80].decode('latin-1')!r}: pages of other sites may not call Kerf")
    return None


async def refuse(refusal: Refusal, send: Send, key: str = "detail") -> None:
    """Answer a request that is not read any further, with the sentence under a key."""
    content = msgspec.json.encode({key: refusal.detail})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(content)),
        (b"connection", b"close"),
        *refusal.headers,
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def client_of(scope: Scope) -> str:
    """Return the client's name for rate limits."""
    return _client_network(_address(scope))


def too_many(limit: str, wait_s: float) -> Refusal:
    """Return a 429 refusal; `limit` names the exceeded limit."""
    wait = math.ceil(wait_s)
    return Refusal(429, f"too many requests: try again in {wait} s ({limit})", ((b"retry-after", b"%d" % wait),))


def _address(scope: Scope) -> _Address | None:
    """Return the client's address; IPv4-mapped IPv6 addresses become IPv4."""
    try:
        address = ipaddress.ip_address(scope["client"][0])
    except (TypeError, ValueError):
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _client_network(address: _Address | None) -> str:
    if isinstance(address, ipaddress.IPv6Address) and not address.is_loopback:
        return str(ipaddress.ip_network((address.packed, _CLIENTS_OF_A_NETWORK), strict=False))
    return str(address)


def _token(authorization: bytes) -> bytes:
    """Return the bearer token, or the password of basic authentication."""
    scheme, _, value = authorization.partition(b" ")
    match scheme.lower():
        case b"bearer":
            return value.strip()
        case b"basic":
            try:
                return base64.b64decode(value, validate=True).partition(b":")[2]
            except binascii.Error:
                return b"?"
    return b""


def _host_name(authority: bytes) -> str:
    try:
        return urlsplit(f"//{authority.decode('latin-1')}").hostname or ""
    except ValueError:
        return ""


def _is_local(host: str) -> bool:
    """Whether a host needs no DNS: `localhost` or an IP address."""
    if host == "localhost":  # not its subdomains: each is a site with its own limit of connections
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
