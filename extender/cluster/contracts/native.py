"""NVIDIA's own device plugin: whole GPUs, which the kubelet picks by itself.

An index that a scheduler assigns is advice there. What a pod was really given is known only to the kubelet (its
PodResources API); whoever reads it on the node can tell Kerf by an annotation of the node, and that beats what was
assigned. Format: a JSON object of GPU UUIDs by the pod's UID, `{"d5b1...": ["GPU-..."]}`; a pod that is not named keeps
what it was assigned. `namespace/name` instead of the UID is understood as well, of the pod that has that name when the
entry is written: one that is made again under the name inherits nothing.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from extender.cluster.contracts.formats import FormatError, bounded

GIVEN: Final = "kerf.dev/given-gpus"
"""Node annotation: what the kubelet really gave."""

_MAX_UUID_CHARS: Final = 128
_decoder: Final = msgspec.json.Decoder(dict[str, list[str]])

Given = dict[str, tuple[str, ...]]
"""UUIDs by a pod's UID, or by `namespace/name`."""


def read_given(annotations: Mapping[str, str]) -> tuple[Given, tuple[str, ...]]:
    """UUIDs of the GPUs that pods were really given, by UID or `namespace/name`; and warnings.

    An annotation that can't be read says nothing: what was assigned stays booked.
    """
    text = annotations.get(GIVEN)
    if text is None:
        return {}, ()
    try:
        given = _decoder.decode(bounded(text))
    except (FormatError, msgspec.DecodeError, RecursionError) as error:
        return {}, (f"{GIVEN} is ignored: {error}",)
    understood = {}
    warnings = []
    for pod, uuids in given.items():
        names = tuple(sorted(set(uuids)))
        if (
            not pod
            or pod.count("/") > 1
            or len(names) != len(uuids)
            or any(not 0 < len(u) <= _MAX_UUID_CHARS for u in names)
        ):
            warnings.append(f"{GIVEN}: what it says of {pod[:80]!r} is ignored")
        elif names:
            understood[pod] = names
    return understood, tuple(warnings)


class GivenGpus:
    """What kubelets gave, node by node, and to which pod each name belongs."""

    def __init__(self) -> None:
        self._given: dict[str, Given] = {}
        self._owner: dict[str, dict[str, str]] = {}  # by node and `namespace/name`: the UID, "" for nobody
        self.starting = True
        """Whether pods may be told of that were there when an entry was written: until they were all listed once."""

    def set(self, node: str, given: Given, uids: Mapping[str, str]) -> bool:
        """A node says so; `uids` are those of its pods by name. Whether it says something else than before."""
        before = self._given.get(node, {})
        if given == before:
            return False
        owners = self._owner.get(node, {})
        self._owner[node] = {
            name: owners[name] if name in owners and before.get(name) == uuids else uids.get(name, "")
            for name, uuids in given.items()
            if "/" in name and (name in uids or name in owners or not self.starting)
        }
        self._given[node] = given
        return True

    def meet(self, node: str, name: str, uid: str) -> bool:
        """A pod is told of for the first time. Whether something is said of it."""
        given = self._given.get(node)
        if not given:
            return False
        if self.starting and name in given:
            self._owner[node].setdefault(name, uid)
        return self.of(node, name, uid) is not None

    def says(self, node: str) -> bool:
        """Whether anything is said on a node."""
        return bool(self._given.get(node))

    def of(self, node: str, name: str, uid: str) -> tuple[str, ...] | None:
        """What a pod was given, None where that is not told."""
        given = self._given.get(node)
        if not given:
            return None
        by_name = given.get(name) if self._owner[node].get(name) == uid else None
        return given.get(uid, by_name)

    def forget(self, node: str) -> None:
        """A node is gone."""
        self._given.pop(node, None)
        self._owner.pop(node, None)
