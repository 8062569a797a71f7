"""All `kerf.dev/` keys: their kind, objects and owning part; and suggestions for misspelt keys.

A misspelt key has no effect: a pod with `kerf.dev/gpu-modle: h100` would run on any free GPU. Kerf therefore places no
pod with an unknown key, and reports the key. The chart's admission policy warns about the same keys.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from functools import lru_cache
from typing import Final

from extender.core.texts import printable

_DOMAIN: Final = "kerf.dev"
_PREFIX: Final = f"{_DOMAIN}/"


class _Kind(StrEnum):
    """What the key names."""

    ANNOTATION = "annotation"
    LABEL = "label"
    RESOURCE = "resource"
    GATE = "scheduling gate"
    TAINT = "taint"
    CONDITION = "condition"


class _On(StrEnum):
    """Kind of object that has the key."""

    POD = "pods"
    NODE = "nodes"
    NAMESPACE = "namespaces"
    PIPELINE = "pipelines"
    CLAIM = "ResourceClaims"
    DEVICE = "devices"
    CONFIG_MAP = "ConfigMaps"


@dataclass(frozen=True, slots=True)
class _Key:
    """A known key."""

    name: str
    kind: _Kind = _Kind.ANNOTATION
    on: _On = _On.POD
    written: bool = False
    """Whether only Kerf writes it."""
    of: str = ""
    """The only part that uses it; "" for the kernel. Without that part the key is known but has no effect."""


_KEYS: Final = (
    # GPU request of a pod
    _Key("kerf.dev/gpu-count"),
    _Key("kerf.dev/gpu-share"),
    _Key("kerf.dev/gpu-memory-each"),
    _Key("kerf.dev/gpu-memory-total"),
    _Key("kerf.dev/gpu-model"),
    _Key("kerf.dev/gpu-model-exclude"),
    _Key("kerf.dev/gpu-uuid"),
    _Key("kerf.dev/gpu-uuid-exclude"),
    _Key("kerf.dev/policy"),
    _Key("kerf.dev/gpu", _Kind.RESOURCE),
    # Queueing, moving and injection
    _Key("kerf.dev/queue", _Kind.LABEL),
    _Key("kerf.dev/queue", _Kind.GATE),
    _Key("kerf.dev/queue", _Kind.LABEL, _On.NAMESPACE),
    _Key("kerf.dev/gang"),
    _Key("kerf.dev/gang-size"),
    _Key("kerf.dev/gang-topology"),
    _Key("kerf.dev/movable", of="defrag"),
    _Key("kerf.dev/last-checkpoint", of="defrag"),
    _Key("kerf.dev/inject", _Kind.LABEL, of="webhook"),
    _Key("kerf.dev/inject", _Kind.LABEL, _On.NAMESPACE, of="webhook"),
    _Key("kerf.dev/gpu-containers", of="webhook"),
    # Written by Kerf on pods
    _Key("kerf.dev/assigned-gpus", written=True),
    _Key("kerf.dev/assigned-uuids", written=True),
    _Key("kerf.dev/assigned-share", written=True),
    _Key("kerf.dev/assigned-memory-mib", written=True),
    _Key("kerf.dev/assigned-model", written=True),
    _Key("kerf.dev/assigned-node", written=True),
    _Key("kerf.dev/assigned-by", written=True),
    _Key("kerf.dev/explanation", written=True),
    _Key("kerf.dev/queued-by", written=True),
    _Key("kerf.dev/claim", written=True),
    _Key("kerf.dev/skipped", written=True),
    _Key("kerf.dev/skipped-count", written=True),
    _Key("kerf.dev/planned-node", written=True),
    _Key("kerf.dev/planned-by", written=True),
    _Key("kerf.dev/nomination-lost", written=True),
    _Key("kerf.dev/woken", written=True),
    _Key("kerf.dev/sealed", written=True),
    _Key("kerf.dev/epoch", written=True),
    _Key("kerf.dev/GangPreempted", _Kind.CONDITION, written=True),
    _Key("kerf.dev/leads", _Kind.LABEL, written=True),
    _Key("kerf.dev/pipeline", _Kind.LABEL, written=True),
    _Key("kerf.dev/pipeline-stage", _Kind.LABEL, written=True, of="pipelines"),
    _Key("kerf.dev/pipeline-step", _Kind.LABEL, written=True, of="pipelines"),
    _Key("kerf.dev/pipeline-attempt", _Kind.LABEL, written=True, of="pipelines"),
    # On other objects
    _Key("kerf.dev/gpus", on=_On.NODE),
    _Key("kerf.dev/given-gpus", on=_On.NODE),
    _Key("kerf.dev/set-aside", on=_On.NODE),
    _Key("kerf.dev/node-report", on=_On.NODE, written=True),
    _Key("kerf.dev/takes-flows-from", on=_On.NAMESPACE, of="pipelines"),
    _Key("kerf.dev/flow", on=_On.PIPELINE, written=True, of="pipelines"),
    _Key("kerf.dev/flow-uid", on=_On.PIPELINE, written=True, of="pipelines"),
    _Key("kerf.dev/touched", on=_On.CLAIM, written=True, of="dra"),
    _Key("kerf.dev/owned", _Kind.TAINT, _On.DEVICE, written=True),
    _Key("kerf.dev/learning", on=_On.CONFIG_MAP, written=True, of="learning"),
    _Key("kerf.dev/pin", on=_On.CONFIG_MAP, of="learning"),
)

_WRITTEN_BEGIN: Final = tuple(f"{_PREFIX}{word}-" for word in ("assigned", "epoch", "planned", "skipped"))
"""Prefixes of keys that Kerf writes on pods: one `epoch-` key per lease, and keys of later versions of Kerf."""


def _names_on(on: _On, *kinds: _Kind) -> list[str]:
    """Names of the keys of some kinds on one kind of object, without duplicates, in table order."""
    return list(dict.fromkeys(key.name for key in _KEYS if key.on is on and key.kind in kinds))


_OF_PODS: Final = {kind: frozenset(_names_on(_On.POD, kind)) for kind in (_Kind.ANNOTATION, _Kind.LABEL)}
_WORDS: Final = {
    key.name.removeprefix(_PREFIX): key.name
    for key in _KEYS
    if key.on is _On.POD and not key.written and key.kind in (_Kind.ANNOTATION, _Kind.LABEL)
}
"""Keys that authors of pods write, by name without the domain."""
_SYNONYMS: Final = {
    "gpu-number": "kerf.dev/gpu-count",
    "gpu-num": "kerf.dev/gpu-count",
    "gpus": "kerf.dev/gpu-count",
    "gpu-fraction": "kerf.dev/gpu-share",
    "gpu-milli": "kerf.dev/gpu-share",
    "gpu-memory": "kerf.dev/gpu-memory-each",
    "gpu-mem": "kerf.dev/gpu-memory-each",
    "gpu-type": "kerf.dev/gpu-model",
    "gpu-product": "kerf.dev/gpu-model",
    "gang-name": "kerf.dev/gang",
}
"""Names of the same keys in Genius and other schedulers."""
_MIN_SIMILARITY: Final = 0.6
"""Least `SequenceMatcher.ratio` at which a name counts as misspelt."""
_MIN_DOMAIN_SIMILARITY: Final = 0.85
"""The same for a domain: keys of other projects must not hold a pod back."""


def rank_of(key: str) -> int:
    """Rank of a pod's annotation: 0 for a known key of Kerf, 1 for another key of its domain, 2 for any other."""
    return 0 if key in _OF_PODS[_Kind.ANNOTATION] else 1 if key.startswith(_PREFIX) else 2


def stray_keys(annotations: Mapping[str, str], labels: Mapping[str, str]) -> Iterator["UnknownKey"]:
    """Yield the pod's keys that have, or nearly have, the domain `kerf.dev/` and no effect on a pod."""
    for kind, keys in ((_Kind.ANNOTATION, annotations), (_Kind.LABEL, labels)):
        known = _OF_PODS[kind]
        for key in keys:  # there may be thousands
            if key in known or not (key[: len(_PREFIX)].lower() == _PREFIX or key.rpartition("/")[2] in _WORDS):
                continue
            if (unknown := _unknown_key(key, kind)) is not None:
                yield unknown


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key without effect where it is."""

    key: str
    fault: str
    meant: str = ""
    """The key that was probably meant, "" where none is close."""

    def __str__(self) -> str:
        return f"{printable(self.key)[:_MAX_KEY]}: {self.fault}"


_MAX_KEY: Final = 120


@lru_cache(maxsize=1024)
def _unknown_key(key: str, kind: _Kind) -> UnknownKey | None:
    """The fault of a key that is not a known key of its kind on pods; None for other projects' keys."""
    domain, _, word = key.lower().rpartition("/")
    word = word.replace("_", "-")
    if domain != _DOMAIN:
        meant = _WORDS.get(word, "")
        return _no_such(key, meant) if meant and _is_misspelt(domain) else None
    if key.startswith(_WRITTEN_BEGIN):
        return None
    others = [other for other in _KEYS if other.name == key]
    if not others:
        return _no_such(key, _closest(word))
    for other in others:
        if other.on is _On.POD and other.kind is _Kind.RESOURCE:
            return UnknownKey(key, f'is a resource: write it under resources.limits, as {key}: "1"', key)
        if other.on is _On.POD and other.kind is not _Kind.GATE:
            return UnknownKey(key, f"is read as {_with_article(other.kind)}, not as {_with_article(kind)}", key)
    meant = _SYNONYMS.get(word, "")
    return UnknownKey(key, f"is read on {others[0].on}, not on pods{_did_you_mean(meant)}", meant)


def _is_misspelt(domain: str) -> bool:
    """Whether the domain resembles Kerf's: `kref.dev` and `kerf.io` do, `knative.dev` does not."""
    name = _DOMAIN.partition(".")[0]
    if domain.partition(".")[0] == name:
        return True
    return SequenceMatcher(None, _DOMAIN, domain).ratio() >= _MIN_DOMAIN_SIMILARITY


def _no_such(key: str, meant: str) -> UnknownKey:
    return UnknownKey(key, f"no such key{_did_you_mean(meant)}", meant)


def _did_you_mean(meant: str) -> str:
    return f"; do you mean {meant}?" if meant else ""


def _with_article(kind: _Kind) -> str:
    return f"{'an' if kind is _Kind.ANNOTATION else 'a'} {kind}"


def _closest(word: str) -> str:
    """The key closest to a misspelt name, "" for none."""
    if word in _SYNONYMS:
        return _SYNONYMS[word]
    ratio = {known: SequenceMatcher(None, known, word).ratio() for known in _WORDS}
    best = max(ratio, key=lambda known: (ratio[known], -len(known)))
    if ratio[best] >= _MIN_SIMILARITY:
        return _WORDS[best]
    parts = set(word.split("-"))
    return next((key for known, key in _WORDS.items() if parts <= set(known.split("-"))), "")
