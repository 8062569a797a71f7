"""NVIDIA's own device plugin: whole GPUs, which the kubelet picks by itself.

An index that a scheduler assigns is advice there. What a pod was really given is known only to the kubelet (its
PodResources API); whoever reads it on the node can tell Kerf by an annotation of the node, and that beats what was
assigned. Format: a JSON object of GPU UUIDs by pod, `{"namespace/name": ["GPU-..."]}`; a pod that is not named keeps
what it was assigned.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from extender.cluster.contracts.formats import FormatError, bounded

GIVEN: Final = "kerf.dev/given-gpus"
"""Node annotation: what the kubelet really gave."""

_MAX_UUID_CHARS: Final = 128
_decoder: Final = msgspec.json.Decoder(dict[str, list[str]])


def read_given(annotations: Mapping[str, str]) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """UUIDs of the GPUs that pods were really given, by `namespace/name`; and warnings.

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
        if pod.count("/") != 1 or len(names) != len(uuids) or any(not 0 < len(u) <= _MAX_UUID_CHARS for u in names):
            warnings.append(f"{GIVEN}: what it says of {pod[:80]!r} is ignored")
        elif names:
            understood[pod] = names
    return understood, tuple(warnings)
