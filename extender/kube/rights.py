"""Rights that Kerf needs, as data; those that it lacks are logged once each, with the user and the manifest that gives
it, and told until it is there.

Whoever asks gets the API server's refusal as any other; here all of them come by.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from extender.core.texts import printable
from extender.kube.transport import ApiError, Query, Right, Transport

logger = logging.getLogger(__name__)

_KEPT_S: Final = 600.0
"""For which a right is lacking that nobody has made use of since."""
_MOST: Final = 100
_VERBS: Final = {"POST": "create", "PATCH": "patch", "APPLY": "patch"}

_DRA: Final = "resource.k8s.io"
_BASE: Final = "manifests/rbac.yaml"
_LEASES: Final = "coordination.k8s.io"


class Need(NamedTuple):
    """Verbs on a resource that Kerf takes; of the one object where a name is given."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    without: str = ""
    """What does not work without it."""
    name: str = ""
    namespace: str = ""
    of_some: bool = False
    """Whether only some users miss what does not work. kube-scheduler's own role lacks some of these: a static pod does
    without, until somebody needs them."""


_SERVING: Final = (
    Need("", "nodes", ("list", "watch"), "no pod is placed"),
    Need("", "nodes", ("get",), "pods of HAMi are not bound", of_some=True),
    Need("", "nodes/status", ("patch",), "pods of HAMi are not bound", of_some=True),
    Need("", "pods", ("list", "watch"), "no pod is placed"),
    Need("", "pods", ("get",), "a pod that changes while it is placed is not bound"),
    Need("", "pods/binding", ("create",), "no pod is bound"),
    Need("", "pods/status", ("patch",), "Kerf never becomes ready, and rejected pods are not woken"),
    Need("", "events", ("create",), "pods have no events that name their GPUs", of_some=True),
    Need("", "services", ("list",), "Prometheus is not discovered (telemetry.url)", of_some=True),
    Need(_DRA, "resourceslices", ("list", "watch"), "GPUs of DRA drivers are not known"),
    Need(_DRA, "resourceclaims", ("list", "watch"), "GPUs that ResourceClaims hold count as free"),
)
"""Whatever the mode, apart from what `serving` leaves out."""
_OF_EXTENDERS: Final = ("pods/binding", "nodes/status")


def serving(*, extender: bool) -> tuple[Need, ...]:
    """What Kerf takes; without an extender it binds no pod, and locks no node of HAMi for one."""
    return tuple(need for need in _SERVING if extender or need.resource not in _OF_EXTENDERS)


BY_CHART: Final = "the chart"
"""Gives what no manifest does."""
QUEUEING: Final = (
    Need("", "pods", ("patch",), "pods never leave the queue"),
    Need("", "pods/eviction", ("create",), "gangs that have lost a pod hold what they have (queue.gangs_end_whole)"),
    Need("", "namespaces", ("list", "watch"), "the queue never starts"),
    Need("scheduling.x-k8s.io", "podgroups", ("get",), "gangs of PodGroups wait for ever"),
    Need("scheduling.k8s.io", "podgroups", ("get",), "gangs of Kubernetes' own PodGroups wait for ever"),
)
"""`queue.enabled`."""


def electing(mode: str, namespace: str, lease: str) -> tuple[Need, ...]:
    """What `leader_election.mode` takes."""
    without = "Kerf never becomes leader"
    match mode:
        case "own":
            return (
                Need(_LEASES, "leases", ("create",), without, namespace=namespace),
                Need(_LEASES, "leases", ("get", "patch"), without, lease, namespace),
            )
        case "scheduler":
            return (Need(_LEASES, "leases", ("get",), without, lease, namespace),)
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """Those that a capability takes, and which manifest gives them."""

    who: str
    """What takes them, as sentences name it."""
    manifest: str
    """Its file, or `BY_CHART`."""
    needs: tuple[Need, ...]
    wanted: Callable[[Any], bool] = lambda settings: True
    """Whether the settings of the part's section take them, of a part that is on."""


_KERNEL: Final = (
    Rights(who="Kerf", manifest=_BASE, needs=(*_SERVING, Need(_LEASES, "leases", ("create", "get", "patch")))),
    Rights(who="the queue", manifest="manifests/queue/rbac.yaml", needs=QUEUEING),
)
"""Of Kerf without its parts."""


def _given_by(all_rights: Iterable[Rights]) -> Mapping[Right, Rights]:
    """Who takes each right, and which manifest gives it."""
    return {
        Right(verb, need.group, need.resource): rights
        for rights in all_rights
        for need in rights.needs
        for verb in need.verbs
    }


def manifest_of(need: Need) -> str:
    """The manifest that gives what the kernel needs."""
    return next((rights.manifest for rights in _KERNEL if need in rights.needs), _BASE)


class Given:
    """Who takes which right, and by which manifest it is given."""

    def __init__(self, of_parts: Iterable[Rights] = ()) -> None:
        """`of_parts` are taken besides the kernel's."""
        self._given = {**_given_by(of_parts), **_given_by(_KERNEL)}

    def who(self, right: Right) -> str:
        """What takes it, as sentences name it."""
        return self._given[right].who if right in self._given else "Kerf"

    def manifest(self, right: Right) -> str:
        """What gives it."""
        return self._given[right].manifest if right in self._given else BY_CHART


@dataclass(slots=True)
class _Lacking:
    words: str
    at: dict[str, float] = field(default_factory=dict)
    """Monotonic time of the last refusal, by namespace; "" for the whole cluster."""


class MissingRights:
    """Those that were refused, until they are there or nobody has asked for long."""

    def __init__(self, clock: Callable[[], float], given: Given) -> None:
        self._clock = clock
        self._given = given
        self._lacking: dict[Right, _Lacking] = {}

    def told(self) -> list[str]:
        """Each in a sentence: "the queue may not patch pods: user ..."."""
        self._forget_old()
        return [_sentence(one) for one in self._lacking.values()]

    def refused(self, error: ApiError, method: str, path: str, query: Query | None) -> None:
        """The API server has refused a request."""
        if error.lacks is None:
            return
        asked, namespace = _right_to(method, path, query)
        right, user = error.lacks
        known = self._lacking.get(asked)
        if known is None:
            if len(self._lacking) >= _MOST:
                return
            who, manifest = self._given.who(right), self._given.manifest(right)
            words = f"{who} may not {right}: user {user} lacks that right, which {manifest} gives"
            known = self._lacking[asked] = _Lacking(printable(words))
            logger.warning("%s", known.words)
        if namespace in known.at or len(known.at) < _MOST:
            known.at[namespace] = self._clock()

    def granted(self, method: str, path: str, query: Query | None) -> None:
        """The API server has done as it was asked."""
        if not self._lacking:
            return
        asked, namespace = _right_to(method, path, query)
        known = self._lacking.get(asked)
        if known is not None and known.at.pop(namespace, None) is not None and not known.at:
            del self._lacking[asked]
            logger.info("%s: it may by now", known.words.partition(": ")[0])

    def _forget_old(self) -> None:
        before = self._clock() - _KEPT_S
        for right, one in list(self._lacking.items()):
            one.at = {namespace: at for namespace, at in one.at.items() if at > before}
            if not one.at:
                del self._lacking[right]


def _sentence(one: _Lacking) -> str:
    namespaces = [name for name in one.at if name]
    if "" in one.at or not namespaces:
        return one.words
    more = f" and {len(namespaces) - 1} more" if len(namespaces) > 1 else ""
    return f"{one.words}, in namespace {namespaces[0]}{more}"


def _right_to(method: str, path: str, query: Query | None) -> tuple[Right, str]:
    """The right that a request takes, and in which namespace, "" for none."""
    root, *rest = path.strip("/").split("/")
    group, rest = ("", rest[1:]) if root == "api" else (rest[0] if rest else "", rest[2:])
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    resource, named = "/".join(rest[:1] + rest[2:]), len(rest) > 1
    reading = "get" if named else "watch" if query is not None and query.get("watch") else "list"
    return Right(_VERBS.get(method, reading), group, resource), namespace


class NotingRights:
    """A transport that has lacking rights noted."""

    def __init__(self, transport: Transport, rights: MissingRights) -> None:
        self._transport = transport
        self._rights = rights

    async def start(self) -> None:
        """As the transport."""
        await self._transport.start()

    async def close(self) -> None:
        """As the transport."""
        await self._transport.close()

    async def get(self, path: str, query: Query | None = None) -> bytes:
        """As the transport."""
        return await self._noted(self._transport.get(path, query), "GET", path, query)

    async def post(self, path: str, body: bytes) -> bytes:
        """As the transport."""
        return await self._noted(self._transport.post(path, body), "POST", path)

    async def patch(self, path: str, body: bytes) -> bytes:
        """As the transport."""
        return await self._noted(self._transport.patch(path, body), "PATCH", path)

    async def ensure(self, path: str, body: bytes) -> bytes:
        """As the transport."""
        return await self._noted(self._transport.ensure(path, body), "APPLY", path)

    async def _noted(self, call: Awaitable[bytes], method: str, path: str, query: Query | None = None) -> bytes:
        try:
            answer = await call
        except ApiError as error:
            self._rights.refused(error, method, path, query)
            raise
        self._rights.granted(method, path, query)
        return answer

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        """As the transport."""
        try:
            async for lines in self._transport.watch(path, query):
                self._rights.granted("GET", path, query)
                yield lines
        except ApiError as error:
            self._rights.refused(error, "GET", path, query)
            raise
