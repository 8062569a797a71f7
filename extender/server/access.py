"""Who may read: the page, explanations, what-if, and everything else that people call.

What kube-scheduler and the API server call is answered before this (`routes.KerfApp`) and has its own rule, that of
client certificates; probes are open. The rest is for clients on loopback, and for those with a token or a certificate.

Tokens that open the API for readers: a file of them, read again when it changes.

How much one client may ask: so many calls a second, and so many at once. Memory is bounded whoever calls.

By hand: `limits` keeps every client until its window ends, and knows of no calls under way.
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
    """A file that no tokens can be taken from; the sentence says what would be right, and holds nothing of the file."""


class Tokens:
    """The tokens of a file, one a line. Where it can't be read any more, none is good."""

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
            raise TokenError(f"{self._path}: {error.strerror}; write one token a line into it") from None
        if lines is None:
            raise TokenError(f"{self._path}: larger than 1 MiB; write one token a line")
        tokens = [line.strip() for line in lines if line.strip() and not line.startswith(b"#")]
        if any(len(token) < _MIN_BYTES for token in tokens):
            raise TokenError(
                f"{self._path}: a token has fewer than {_MIN_BYTES} characters; make one with `openssl rand -hex 32`"
            )
        self._stamp = state.st_mtime_ns, state.st_ino, state.st_size
        self._digests = [hashlib.sha256(token).digest() for token in tokens]

    def holder(self, token: bytes) -> str:
        """A name for whoever shows a token, "" for one that is not in the file. Takes as long for any token."""
        self._refresh()
        given = hashlib.sha256(token).digest()
        found = [digest for digest in self._digests if hmac.compare_digest(digest, given)]
        return f"token {found[0][:4].hex()}" if found else ""

    def _refresh(self) -> None:
        """Look whether the file has changed: links are followed, as Kubernetes replaces a mounted Secret."""
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
"""Calls that a client may make at once before the limit of access.calls_per_s applies."""
_AT_ONCE: Final = 32
"""Calls of a client under way at a time, open streams among them."""
MAX_BODY_MIB: Final = 16
"""Of a question, in MiB."""


class Rates:
    """A token bucket for each client; of those that have not called for longest nothing is kept."""

    def __init__(self, *, per_s: float, burst: int, at_once: int, clock: Callable[[], float]) -> None:
        """`per_s` 0: no limit but that of calls at once."""
        self._per_s = per_s
        self._burst = burst
        self._at_once = at_once
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # calls left, when that was
        self._under_way: Counter[str] = Counter()

    def wait_s(self, client: str) -> float:
        """Take one call out of a client's bucket: 0 when there was one, else the seconds until there is."""
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
        """Count a call that begins, unless the client has too many under way."""
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
        """How many clients something is kept of."""
        return len(self._buckets.keys() | self._under_way.keys())


Header = tuple[bytes, bytes]
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

PROBES: Final = frozenset({"/healthz", "/readyz", "/syncz"})
METRICS: Final = "/metrics"
_PAGE_FILES: Final = "/page/"
_FILES_A_CALL: Final = 10
"""A page is some forty files; one that is refused leaves it blank."""
_PAGES: Final = frozenset({"/", "/docs"})
"""To which pages of other sites may lead: a browser shows them, and tells the other site nothing."""
OPERATOR: Final = "kerf.operator"
"""Key of a scope: whether an operator calls."""
_CLIENTS_OF_A_NETWORK: Final = 64
"""Bits of an IPv6 address by which clients are told apart: one machine may have all addresses of such a network."""
_ANSWER_HEADERS: Final = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
]
_CHALLENGES: Final = (
    (b"www-authenticate", b'Bearer realm="Kerf"'),
    (b"www-authenticate", b'Basic realm="Kerf: any user name, a token as password"'),  # what browsers ask for
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that means no, with a sentence that says what to do."""

    status: int
    detail: str
    headers: tuple[Header, ...] = ()


_NO_OPERATORS: Final = Refusal(403, "nobody may have pods moved here: setting access.apply_token_file")
_NO_OPERATOR: Final = Refusal(
    401,
    "for operators: send a token of the file of setting access.apply_token_file, as `Authorization: Bearer TOKEN`",
    _CHALLENGES[:1],
)


class Guard:
    """ASGI middleware around everything that people call."""

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
        """`operated` are paths that change something: for operators alone, wherever they are."""
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
        client, refusal = self._judged(scope)
        of_page = refusal is None and scope["path"].startswith(_PAGE_FILES)  # guesses of tokens are not
        rates = self._file_rates if of_page else self._rates
        if wait_s := rates.wait_s(client):
            refusal = too_many("setting access.calls_per_s", wait_s)
        elif refusal is None and not self._rates.begin(client):
            refusal = too_many(f"{self._at_once} at once", 1.0)
        if refusal is not None:
            await refuse(refusal, send)
            return

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_ANSWER_HEADERS]
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        finally:
            self._rates.end(client)

    def _judged(self, scope: Scope) -> tuple[str, Refusal | None]:
        """By which name a client's calls are counted, and why it is refused."""
        address = _address(scope)
        client = _network(address)
        headers = dict(scope["headers"])
        if operator := self._operator(headers):
            scope[OPERATOR] = True
            return operator, None
        if refusal := _of_another_site(scope["path"], headers):
            return f"{client}, pages of other sites", refusal
        if scope["path"] in self._operated:
            return client, _NO_OPERATORS if self._operators is None else _NO_OPERATOR
        if self._open_to_all:
            return client, None
        if self._tokens is not None and (token := _token(headers.get(b"authorization", b""))):
            holder = self._tokens.holder(token)
            unknown = Refusal(401, "this token is not in the file of setting access.token_file", _CHALLENGES)
            return holder or client, None if holder else unknown
        if scope.get("state", {}).get(CLIENT_CERTIFICATE):
            return client, None
        if address is not None and address.is_loopback:
            refusal = _foreign(headers, self._hosts)
            return f"{client}, pages of other sites" if refusal else client, refusal
        if self._tokens is not None:
            detail = "send a token, as `Authorization: Bearer TOKEN` or as the password of any user"
            return client, Refusal(401, detail, _CHALLENGES)
        return client, Refusal(
            403,
            "open to clients on loopback only: use `kubectl port-forward`, or allow others with access.token_file or "
            "server.tls_client_ca_file (docs/reference/access.md)",
        )

    def _operator(self, headers: dict[bytes, bytes]) -> str:
        """The name of the operator who calls, "" for anybody else. What a browser sends by itself makes nobody one."""
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        return (
            self._operators.holder(token.strip()) if self._operators is not None and scheme.lower() == b"bearer" else ""
        )


def foreign_page(scope: Scope, hosts: Collection[str]) -> Refusal | None:
    """Why a call of a verb is refused: a browser makes it, for a page that is not Kerf's own."""
    headers = dict(scope["headers"])
    if refusal := _of_another_site(scope["path"], headers):
        return refusal
    # Browsers send an origin with every POST, kube-scheduler never does.
    return _foreign(headers, hosts) if b"origin" in headers else None


def _of_another_site(path: str, headers: dict[bytes, bytes]) -> Refusal | None:
    """Why what a browser asks is refused, by what it says itself of who wants it: images and scripts have no origin."""
    site = headers.get(b"sec-fetch-site", b"none")
    if site in (b"none", b"same-origin"):  # typed, a bookmark, or Kerf's own page
        return None
    if (
        path in _PAGES
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    ):
        return None  # a link was followed
    return Refusal(403, f"asked by a page of another site ({site[:20].decode('latin-1')}): those may not call this")


def _foreign(headers: dict[bytes, bytes], hosts: Collection[str]) -> Refusal | None:
    """Why what a browser on this machine asks may be another site's wish.

    A site may have its name lead to loopback once its page is loaded: the host is then that name, not ours.
    """
    authority = headers.get(b"host", b"localhost")
    host = _host_name(authority)
    if host not in hosts and not _is_local(host):
        return Refusal(403, f"host {host[:80]!r}: call it localhost or by address, or name it in setting access.hosts")
    origin = headers.get(b"origin")
    if origin is not None and origin.partition(b"//")[2] != authority:
        return Refusal(403, f"origin {origin[:80].decode('latin-1')!r}: pages of other sites may not call this")
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
    """By which name an address's calls are counted."""
    return _network(_address(scope))


def too_many(limit: str, wait_s: float) -> Refusal:
    """An answer to who calls too often; `limit` names what is exceeded."""
    wait = math.ceil(wait_s)
    return Refusal(429, f"too many requests: try again in {wait} s ({limit})", ((b"retry-after", b"%d" % wait),))


def _address(scope: Scope) -> _Address | None:
    """The client's address; IPv4 addresses that came by an IPv6 socket are IPv4 again."""
    try:
        address = ipaddress.ip_address(scope["client"][0])
    except (TypeError, ValueError):
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _network(address: _Address | None) -> str:
    if isinstance(address, ipaddress.IPv6Address) and not address.is_loopback:
        return str(ipaddress.ip_network((address.packed, _CLIENTS_OF_A_NETWORK), strict=False))
    return str(address)


def _token(authorization: bytes) -> bytes:
    """The token in a header: of a bearer, or the password of basic authentication."""
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
    """Whether no name server has a say in where a name leads."""
    if host == "localhost":  # and not its subdomains: each is a site, of as many connections as a browser likes
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
