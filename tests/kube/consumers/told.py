"""What a process was told, from the events alone: what it has to think that there is, and what became of it when.

By these rules, and as simply as they can be written down:

- an object is known as it was told last, from when it was told of until it is told to be gone, has finished, is not
  named by a complete list, or another one has its name: of the last two it was missed when and how they went;
- so it was of a pod that does not have its node any more, and is known as another one from then on; and so it was of
  all once a list is older than what was told before: an etcd was restored;
- a node that can't be read is gone; a pod stays what it was known as, and one that never could be read counts as one
  that holds all GPUs of its node, until it can be;
- one whose end says that it was being deleted was known to be, before it was gone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, Final

import msgspec

from extender.core.resources.requests import PodRequest, RequestError
from extender.kube.objects import Node, Pod
from extender.kube.transport import NAMESPACES_PATH, NODES_PATH, PODS_PATH
from extender.plugins.pods import Holdings, read_holdings, read_pod_request
from tests.kube.consumers.servers import PATHS, Manifest, finished, is_unreadable

ALL, BOUND, PENDING, NODES, NAMESPACES = "all pods", "pods with a node", "pods without one", "nodes", "namespaces"
_MORE_THAN_ANY: Final = str(2**30)


@dataclass(frozen=True)
class Version:
    """A version of an object that was told."""

    item: Any
    at: float
    """Unix time at which it was."""
    moment: int
    """The number of that change among all."""
    opted_in: frozenset[str]
    """Namespaces that were known to opt in to the queue."""
    all_opted_in: bool
    """Whether those were all."""

    @cached_property
    def says(self) -> Holdings:
        """What a pod holds by this version."""
        return read_holdings(self.item)[0]

    @cached_property
    def asks(self) -> PodRequest | None:
        """A pod's request, None if it is invalid."""
        try:
            return read_pod_request(self.item)
        except RequestError:
            return None


@dataclass
class Stay:
    """An object of a group, from its arrival to its end."""

    uid: str
    made_up: bool
    """Whether it never could be read."""
    versions: list[Version] = field(default_factory=list)
    ended: int | None = None
    """At which moment, None while it is there."""
    ended_at: float = 0.0
    missed: bool = False
    """Whether that was told by what a list says alone."""

    @property
    def began(self) -> int:
        return self.versions[0].moment

    @property
    def said(self) -> Holdings:
        """What a pod holds by its first version."""
        return self.versions[0].says

    @property
    def last(self) -> Any:
        return self.versions[-1].item


_GROUPS: Final[dict[str, dict[str, Callable[[Any], bool]]]] = {
    NODES_PATH: {NODES: lambda node: True},
    NAMESPACES_PATH: {NAMESPACES: lambda namespace: True},
    PODS_PATH: {
        ALL: lambda pod: True,
        BOUND: lambda pod: bool(pod.spec.node_name),
        PENDING: lambda pod: not pod.spec.node_name,
    },
}


@dataclass
class Told:
    """All that one process was told since it began."""

    wall_clock: Callable[[], float]
    moment: int = 0
    begun: float = inf
    """At which moment all had been listed once, inf before."""
    listed: set[str] = field(default_factory=set)
    """Paths of which there was a complete list."""
    asked: list[tuple[int, Pod]] = field(default_factory=list)
    """Pods that were offered nodes, and at which moment."""
    _all: dict[str, list[Stay]] = field(
        default_factory=lambda: {group: [] for found in _GROUPS.values() for group in found}
    )
    _open: dict[str, dict[str, Stay]] = field(
        default_factory=lambda: {group: {} for found in _GROUPS.values() for group in found}
    )

    _newest: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_GROUPS, 0))
    """By path, the version of what was told last."""

    def stays(self, group: str, *, made_up: bool = False) -> Iterator[Stay]:
        """All objects that ever were in a group, in order of arrival."""
        return (stay for stay in self._all[group] if made_up or not stay.made_up)

    def there(self, group: str, *, made_up: bool = False) -> dict[str, Stay]:
        """The current objects of a group by UID, in order of arrival; with `made_up` also stand-ins."""
        return {uid: stay for uid, stay in self._open[group].items() if made_up or not stay.made_up}

    def nodes(self) -> dict[str, Node]:
        """The current nodes by name."""
        return {stay.last.metadata.name: stay.last for stay in self._open[NODES].values()}

    def opted_in(self) -> frozenset[str]:
        """Namespaces that opt in to the queue."""
        namespaces = (stay.last.metadata for stay in self._open[NAMESPACES].values())
        return frozenset(item.name for item in namespaces if (item.labels or {}).get("kerf.dev/queue") == "enabled")

    def ask(self, pod: Pod) -> None:
        self.moment += 1
        self.asked.append((self.moment, pod))

    def hear(self, path: str, kind: str, manifest: Manifest) -> None:
        """An event or an item of a list."""
        uid, group = manifest["metadata"]["uid"], next(iter(_GROUPS[path]))
        known = self._open[group].get(uid)
        readable = not is_unreadable(manifest)
        if readable or kind == "DELETED":
            self._newest[path] = max(self._newest[path], int(manifest["metadata"]["resourceVersion"]))
        if kind == "DELETED":
            if known and not known.made_up and readable and manifest["metadata"].get("deletionTimestamp"):
                self._change(path, uid, _decoded(path, manifest))
            self._gone(path, uid)
        elif finished(manifest) or (path == NODES_PATH and not readable):
            self._gone(path, uid)
        elif readable:
            if known and known.made_up:
                self._gone(path, uid)
            self._change(path, uid, _decoded(path, manifest))
        elif known is None and path == PODS_PATH:
            self._change(path, uid, _made_up(manifest), made_up=True)

    def complete(self, path: str, named: set[str], version: int) -> None:
        """A complete list of a version."""
        if version < self._newest[path]:
            for uid, stay in list(self._open[next(iter(_GROUPS[path]))].items()):
                self._gone(path, uid, missed=True)
                self._change(path, uid, stay.last, made_up=stay.made_up)
        self._newest[path] = version
        for uid in [uid for uid in self._open[next(iter(_GROUPS[path]))] if uid not in named]:
            self._gone(path, uid, missed=True)
        self.listed.add(path)

    def _gone(self, path: str, uid: str, *, missed: bool = False) -> None:
        self._change(path, uid, None, missed=missed)

    def _change(self, path: str, uid: str, new: Any, *, made_up: bool = False, missed: bool = False) -> None:
        if new is not None:
            for other in list(self._open[next(iter(_GROUPS[path]))].values()):
                if other.uid == uid and path == PODS_PATH and new.spec.node_name != other.last.spec.node_name:
                    if other.last.spec.node_name:
                        self._gone(path, uid, missed=True)
                elif other.uid != uid and other.last.key == new.key:
                    self._gone(path, other.uid, missed=True)
        self.moment += 1
        version = Version(new, self.wall_clock(), self.moment, self.opted_in(), NAMESPACES_PATH in self.listed)
        for group, belongs in _GROUPS[path].items():
            stay = self._open[group].get(uid)
            if new is not None and belongs(new):
                if stay is None:
                    stay = self._open[group][uid] = Stay(uid, made_up)
                    self._all[group].append(stay)
                stay.versions.append(version)
            elif stay is not None:
                stay.ended, stay.ended_at, stay.missed = self.moment, self.wall_clock(), missed
                del self._open[group][uid]


def _decoded(path: str, manifest: Manifest) -> Any:
    return msgspec.convert(manifest, Pod if path == PODS_PATH else Node)


def _made_up(manifest: Manifest) -> Pod:
    """The stand-in of a pod that can't be decoded: it requests more GPUs than any node has."""
    metadata = {name: manifest["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
    container = {"resources": {"requests": {"nvidia.com/gpu": _MORE_THAN_ANY}}}
    spec = {"containers": [container], "nodeName": manifest["spec"].get("nodeName")}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": manifest["status"]["phase"]}}, Pod)


def assert_it_is_what_there_is(told: Told, objects: dict[str, dict[str, Manifest]]) -> None:
    """For a process that was told all."""
    for path in PATHS:
        group = next(iter(_GROUPS[path]))
        found = {uid: stay.last.metadata.resource_version for uid, stay in told.there(group, made_up=True).items()}
        there = {item["metadata"]["uid"]: item for item in objects[path].values() if not finished(item)}
        for uid, manifest in there.items():
            if not is_unreadable(manifest):
                assert found.pop(uid) == manifest["metadata"]["resourceVersion"]
            elif path == PODS_PATH:
                assert uid in found
                del found[uid]
            elif path == NAMESPACES_PATH:
                found.pop(uid, None)
        assert not found, f"of {group} there are more than there are"
