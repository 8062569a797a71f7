"""Rights that Kerf lacks: each is logged once, with the user and the manifest that gives it, and told until it is.

Whoever asks gets the API server's refusal as any other; here all of them come by.
"""

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

from extender.core.texts import printable
from extender.kube.transport import ApiError, Query, Right, Transport

logger = logging.getLogger(__name__)

_KEPT_S: Final = 600.0
"""For which a right is lacking that nobody has made use of since."""
_MOST: Final = 100
_VERBS: Final = {"POST": "create", "PATCH": "patch", "APPLY": "patch"}

_PODGROUPS: Final = ("scheduling.x-k8s.io", "scheduling.k8s.io")
_DRA: Final = "resource.k8s.io"
_BASE: Final = "manifests/rbac.yaml"


def _of(part: str, manifest: str, *rights: tuple[str, str, str]) -> dict[Right, tuple[str, str]]:
    """Rights as (verbs, API group, resources) that a part of Kerf is given by a manifest."""
    return {
        Right(verb, group, resource): (part, manifest)
        for verbs, group, resources in rights
        for verb in verbs.split()
        for resource in resources.split()
    }


_GIVEN: Final = (
    _of(
        "Kerf",
        _BASE,
        ("get list watch", "", "nodes pods"),
        ("list watch", _DRA, "resourceslices resourceclaims"),
        ("list", "policy", "poddisruptionbudgets"),
        ("list", "batch", "jobs"),
        ("create", "", "pods/binding events"),
        ("patch", "", "pods/status nodes/status"),
        ("list", "", "services"),
        ("create get patch", "coordination.k8s.io", "leases"),
    )
    | _of(
        "the queue",
        "manifests/queue/rbac.yaml",
        ("patch", "", "pods"),
        ("create", "", "pods/eviction"),
        ("list watch", "", "namespaces"),
        *(("get", group, "podgroups") for group in _PODGROUPS),
    )
    | _of(
        "the allocator of devices",
        "manifests/dra/rbac.yaml",
        ("list watch", _DRA, "deviceclasses devicetaintrules"),
        ("get patch", _DRA, "resourceclaims"),
        ("patch", _DRA, "resourceclaims/status resourceclaims/binding"),
    )
    | _of(
        "pipelines",
        "manifests/queue/pipelines.yaml",
        ("list watch", "kerf.dev", "pipelines"),
        ("patch", "kerf.dev", "pipelines/status"),
        ("get watch create patch", "batch", "jobs"),
    )
    | _of(
        "pipelines",
        "manifests/queue/mlflows.yaml",
        ("list watch", "kopf.dev", "mlflows"),
        ("patch", "kopf.dev", "mlflows/status"),
        ("create patch", "kerf.dev", "pipelines"),
    )
)
"""Which part of Kerf needs a right, and which manifest gives it."""


def needed_by(right: Right) -> tuple[str, str]:
    """Which part of Kerf needs a right, and which manifest gives it."""
    return _GIVEN.get(right, ("Kerf", "the chart"))


@dataclass(slots=True)
class _Lacking:
    words: str
    at: dict[str, float] = field(default_factory=dict)
    """Monotonic time of the last refusal, by namespace; "" for the whole cluster."""


class MissingRights:
    """Those that were refused, until they are there or nobody has asked for long."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
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
            part, manifest = needed_by(right)
            words = f"{part} may not {right}: user {user} lacks that right, which {manifest} gives"
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
        try:
            answer = await self._transport.get(path, query)
        except ApiError as error:
            self._rights.refused(error, "GET", path, query)
            raise
        self._rights.granted("GET", path, query)
        return answer

    async def post(self, path: str, body: bytes) -> bytes:
        """As the transport."""
        try:
            answer = await self._transport.post(path, body)
        except ApiError as error:
            self._rights.refused(error, "POST", path, None)
            raise
        self._rights.granted("POST", path, None)
        return answer

    async def patch(self, path: str, body: bytes) -> bytes:
        """As the transport."""
        try:
            answer = await self._transport.patch(path, body)
        except ApiError as error:
            self._rights.refused(error, "PATCH", path, None)
            raise
        self._rights.granted("PATCH", path, None)
        return answer

    async def ensure(self, path: str, body: bytes) -> bytes:
        """As the transport."""
        try:
            answer = await self._transport.ensure(path, body)
        except ApiError as error:
            self._rights.refused(error, "APPLY", path, None)
            raise
        self._rights.granted("APPLY", path, None)
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
