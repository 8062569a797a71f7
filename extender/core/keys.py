"""Every key of `kerf.dev/`: what it is, on which objects and whose; and what a key that is none of them was to be.

A key that nobody reads says nothing: the pod of `kerf.dev/gpu-modle: h100` would run on whatever GPU is free. So a
pod that waits is told of it, and gets no node. The admission policy of the chart warns of the same keys when an object
is created, whether Kerf runs or not.
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
    """What a key is a key of."""

    ANNOTATION = "annotation"
    LABEL = "label"
    RESOURCE = "resource"
    GATE = "scheduling gate"
    TAINT = "taint"
    CONDITION = "condition"


class _On(StrEnum):
    """What kind of object has it."""

    POD = "pods"
    NODE = "nodes"
    NAMESPACE = "namespaces"
    PIPELINE = "pipelines"
    CLAIM = "ResourceClaims"
    DEVICE = "devices"
    CONFIG_MAP = "ConfigMaps"


@dataclass(frozen=True, slots=True)
class _Key:
    """One of them."""

    name: str
    kind: _Kind = _Kind.ANNOTATION
    on: _On = _On.POD
    written: bool = False
    """Whether Kerf writes it, and nobody else has a reason to."""
    of: str = ""
    """The part that alone reads or writes it: without that part it is known, and means nothing."""


_KEYS: Final = (
    # What a pod asks for
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
    # How it waits, moves and sees its GPUs
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
    # What Kerf writes on it
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
"""What keys begin with that Kerf writes on pods: of `epoch-` there is one for each lease, and a Kerf of a later version
may write others, which are no fault of a pod's author."""


def _names_on(on: _On, *kinds: _Kind) -> list[str]:
    """The keys of some kinds on some objects, each once, in the order of the table."""
    return list(dict.fromkeys(key.name for key in _KEYS if key.on is on and key.kind in kinds))


_OF_PODS: Final = {kind: frozenset(_names_on(_On.POD, kind)) for kind in (_Kind.ANNOTATION, _Kind.LABEL)}
_WORDS: Final = {
    key.name.removeprefix(_PREFIX): key.name
    for key in _KEYS
    if key.on is _On.POD and not key.written and key.kind in (_Kind.ANNOTATION, _Kind.LABEL)
}
"""What authors of pods write, without the domain: the key of each."""
_ALSO: Final = {
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
"""Words of Genius and other schedulers for the same."""
_ALIKE: Final = 0.6
"""From which part of the letters in common, by `SequenceMatcher.ratio`, a word is taken for a misspelt one."""
_DOMAIN_ALIKE: Final = 0.85
"""The same of a domain: other people's keys keep no pod waiting."""


def rank_of(key: str) -> int:
    """Of an annotation of a pod: 0 for one of Kerf's, 1 for another key of its domain, 2 for somebody else's."""
    return 0 if key in _OF_PODS[_Kind.ANNOTATION] else 1 if key.startswith(_PREFIX) else 2


def stray_keys(annotations: Mapping[str, str], labels: Mapping[str, str]) -> Iterator["Stray"]:
    """The keys of a pod that are, or were meant to be, of `kerf.dev/` and that nobody reads there."""
    for kind, said in ((_Kind.ANNOTATION, annotations), (_Kind.LABEL, labels)):
        known = _OF_PODS[kind]
        for key in said:  # an author may write thousands
            if key in known or not (key[: len(_PREFIX)].lower() == _PREFIX or key.rpartition("/")[2] in _WORDS):
                continue
            if (stray := _stray(key, kind)) is not None:
                yield stray


@dataclass(frozen=True, slots=True)
class Stray:
    """A key that nobody reads where it is."""

    key: str
    fault: str
    meant: str = ""
    """The key that it may have been meant to be, "" where none is close."""

    def __str__(self) -> str:
        return f"{printable(self.key)[:_MAX_KEY]}: {self.fault}"


_MAX_KEY: Final = 120


@lru_cache(maxsize=1024)
def _stray(key: str, kind: _Kind) -> Stray | None:
    """What is wrong with a key that is not among those of its kind on pods; None where it is none of Kerf's."""
    domain, _, word = key.lower().rpartition("/")
    word = word.replace("_", "-")
    if domain != _DOMAIN:
        meant = _WORDS.get(word, "")
        alike = meant and _is_misspelt(domain)
        return _no_such(key, meant) if alike else None
    if key.startswith(_WRITTEN_BEGIN):
        return None
    others = [one for one in _KEYS if one.name == key]
    if not others:
        return _no_such(key, _meant(word))
    for one in others:
        if one.on is _On.POD and one.kind is _Kind.RESOURCE:
            return Stray(key, f'is a resource: write it under resources.limits, as {key}: "1"', key)
        if one.on is _On.POD and one.kind is not _Kind.GATE:
            return Stray(key, f"is read as {_a(one.kind)}, not as {_a(kind)}", key)
    meant = _ALSO.get(word, "")
    return Stray(key, f"is read on {others[0].on}, not on pods{_ask(meant)}", meant)


def _is_misspelt(domain: str) -> bool:
    """Whether it was meant to be Kerf's: `kref.dev`, `kerf.io`, and not `knative.dev`."""
    name = _DOMAIN.partition(".")[0]
    return domain.partition(".")[0] == name or SequenceMatcher(None, _DOMAIN, domain).ratio() >= _DOMAIN_ALIKE


def _no_such(key: str, meant: str) -> Stray:
    return Stray(key, f"no such key{_ask(meant)}", meant)


def _ask(meant: str) -> str:
    return f"; do you mean {meant}?" if meant else ""


def _a(kind: _Kind) -> str:
    return f"{'an' if kind is _Kind.ANNOTATION else 'a'} {kind}"


def _meant(word: str) -> str:
    """The key of a pod's author that a misspelt word is closest to, "" for none."""
    if word in _ALSO:
        return _ALSO[word]
    ratio = {known: SequenceMatcher(None, known, word).ratio() for known in _WORDS}
    best = max(ratio, key=lambda known: (ratio[known], -len(known)))
    if ratio[best] >= _ALIKE:
        return _WORDS[best]
    parts = set(word.split("-"))
    return next((key for known, key in _WORDS.items() if parts <= set(known.split("-"))), "")
