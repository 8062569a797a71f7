"""The RBAC rights that Kerf needs, and those that the API server has refused.

`RightsRecorder` wraps a transport. Each missing right is logged once, with the user and the manifest that grants it,
and reported until it is granted. Callers get the API server's error as usual.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from extender.core.texts import printable
from extender.kube.transport import ApiError, Query, Right, Transport

logger = logging.getLogger(__name__)

_KEPT_S: Final = 600.0
"""Seconds after its last refusal for which a right is reported as missing."""
_MAX_KEPT: Final = 100
_VERBS: Final = {"POST": "create", "PATCH": "patch", "APPLY": "patch"}

_DRA: Final = "resource.k8s.io"
_BASE: Final = "manifests/rbac.yaml"
_LEASES: Final = "coordination.k8s.io"


class Need(NamedTuple):
    """Verbs on a resource that Kerf needs, on one object if a name is given."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    without: str = ""
    """What does not work without the right."""
    name: str = ""
    namespace: str = ""
    of_some: bool = False
    """Whether only some users need it. kube-scheduler's own role, which Kerf uses as a static pod, may lack it."""


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
"""Needed in every mode, except for `_EXTENDER_ONLY`."""
_EXTENDER_ONLY: Final = ("pods/binding", "nodes/status")


def serving(*, extender: bool) -> tuple[Need, ...]:
    """Return what Kerf needs; without an extender it binds no pods and locks no nodes of HAMi."""
    return tuple(need for need in _SERVING if extender or need.resource not in _EXTENDER_ONLY)


BY_CHART: Final = "the chart"
"""Grants what no manifest does."""
QUEUEING: Final = (
    Need("", "pods", ("patch",), "pods never leave the queue"),
    Need("", "pods/eviction", ("create",), "gangs that have lost a pod keep their GPUs (queue.gangs_end_whole)"),
    Need("", "namespaces", ("list", "watch"), "the queue never starts"),
    Need("scheduling.x-k8s.io", "podgroups", ("get",), "gangs of PodGroups wait forever"),
    Need("scheduling.k8s.io", "podgroups", ("get",), "gangs of Kubernetes' own PodGroups wait forever"),
)
"""What `queue.enabled` needs."""


def electing(mode: str, namespace: str, lease: str) -> tuple[Need, ...]:
    """Return what `leader_election.mode` needs."""
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
    """The rights that a capability needs, and the manifest that grants them."""

    capability: str
    """The capability, as sentences name it."""
    manifest: str
    """File, or `BY_CHART`."""
    needs: tuple[Need, ...]
    wanted: Callable[[Any], bool] = lambda settings: True
    """Whether the section's settings need them, given that the part is on."""


_KERNEL: Final = (
    Rights(capability="Kerf", manifest=_BASE, needs=(*_SERVING, Need(_LEASES, "leases", ("create", "get", "patch")))),
    Rights(capability="the queue", manifest="manifests/queue/rbac.yaml", needs=QUEUEING),
)
"""The rights of Kerf without its parts."""


def _given_by(all_rights: Iterable[Rights]) -> Mapping[Right, Rights]:
    """Return by right the capability that needs it; the last one wins."""
    return {
        Right(verb, need.group, need.resource): rights
        for rights in all_rights
        for need in rights.needs
        for verb in need.verbs
    }


def manifest_of(need: Need) -> str:
    """Return the manifest that grants a right of the kernel."""
    return next((rights.manifest for rights in _KERNEL if need in rights.needs), _BASE)


class Grants:
    """Which capability needs a right, and which manifest grants it."""

    def __init__(self, of_parts: Iterable[Rights] = ()) -> None:
        """`of_parts` are added to the kernel's."""
        self._given = {**_given_by(of_parts), **_given_by(_KERNEL)}

    def capability(self, right: Right) -> str:
        """Return the capability that needs a right, as sentences name it."""
        return self._given[right].capability if right in self._given else "Kerf"

    def manifest(self, right: Right) -> str:
        """Return the manifest that grants a right."""
        return self._given[right].manifest if right in self._given else BY_CHART


@dataclass(slots=True)
class _Missing:
    words: str
    refused_at: dict[str, float] = field(default_factory=dict)
    """Monotonic time of the last refusal, by namespace; "" for the whole cluster."""


class MissingRights:
    """Rights that were refused, until they are granted or `_KEPT_S` have passed."""

    def __init__(self, clock: Callable[[], float], given: Grants) -> None:
        self._clock = clock
        self._given = given
        self._missing: dict[Right, _Missing] = {}

    def sentences(self) -> list[str]:
        """Return a sentence for each: "the queue may not patch pods: user ..."."""
        self._forget_old()
        return [_sentence(one) for one in self._missing.values()]

    def refused(self, error: ApiError, method: str, path: str, query: Query | None) -> None:
        """Record that the API server refused a request."""
        if error.missing_right is None:
            return
        requested, namespace = _right_to(method, path, query)
        right, user = error.missing_right
        known = self._missing.get(requested)
        if known is None:
            if len(self._missing) >= _MAX_KEPT:
                return
            who, manifest = self._given.capability(right), self._given.manifest(right)
            words = f"{who} may not {right}: user {user} lacks that right, which {manifest} gives"
            known = self._missing[requested] = _Missing(printable(words))
            logger.warning("%s", known.words)
        if namespace in known.refused_at or len(known.refused_at) < _MAX_KEPT:
            known.refused_at[namespace] = self._clock()

    def granted(self, method: str, path: str, query: Query | None) -> None:
        """Record that the API server served a request."""
        if not self._missing:
            return
        requested, namespace = _right_to(method, path, query)
        known = self._missing.get(requested)
        if known is not None and known.refused_at.pop(namespace, None) is not None and not known.refused_at:
            del self._missing[requested]
            logger.info("%s: granted now", known.words.partition(": ")[0])

    def _forget_old(self) -> None:
        oldest = self._clock() - _KEPT_S
        for right, one in list(self._missing.items()):
            one.refused_at = {namespace: at for namespace, at in one.refused_at.items() if at > oldest}
            if not one.refused_at:
                del self._missing[right]


def _sentence(one: _Missing) -> str:
    namespaces = [name for name in one.refused_at if name]
    if "" in one.refused_at or not namespaces:
        return one.words
    more = f" and {len(namespaces) - 1} more" if len(namespaces) > 1 else ""
    return f"{one.words}, in namespace {namespaces[0]}{more}"


def _right_to(method: str, path: str, query: Query | None) -> tuple[Right, str]:
    """Return the right that a request needs, and its namespace or ""."""
    root, *rest = path.strip("/").split("/")
    group, rest = ("", rest[1:]) if root == "api" else (rest[0] if rest else "", rest[2:])
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    resource, named = "/".join(rest[:1] + rest[2:]), len(rest) > 1
    reading = "get" if named else "watch" if query is not None and query.get("watch") else "list"
    return Right(_VERBS.get(method, reading), group, resource), namespace


class RightsRecorder:
    """A transport that records missing rights."""

    def __init__(self, transport: Transport, rights: MissingRights) -> None:
        self._transport = transport
        self._rights = rights

    async def start(self) -> None:
        await self._transport.start()

    async def close(self) -> None:
        await self._transport.close()

    async def get(self, path: str, query: Query | None = None) -> bytes:
        return await self._recorded(self._transport.get(path, query), "GET", path, query)

    async def post(self, path: str, body: bytes) -> bytes:
        return await self._recorded(self._transport.post(path, body), "POST", path)

    async def patch(self, path: str, body: bytes) -> bytes:
        return await self._recorded(self._transport.patch(path, body), "PATCH", path)

    async def ensure(self, path: str, body: bytes) -> bytes:
        return await self._recorded(self._transport.ensure(path, body), "APPLY", path)

    async def _recorded(self, call: Awaitable[bytes], method: str, path: str, query: Query | None = None) -> bytes:
        try:
            answer = await call
        except ApiError as error:
            self._rights.refused(error, method, path, query)
            raise
        self._rights.granted(method, path, query)
        return answer

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        try:
            async for lines in self._transport.watch(path, query):
                self._rights.granted("GET", path, query)
                yield lines
        except ApiError as error:
            self._rights.refused(error, "GET", path, query)
            raise
