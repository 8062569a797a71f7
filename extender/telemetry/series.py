"""Metric names and units of all vendors' exporters, and the labels that identify a series' node, GPU and pod."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from extender.core.clusters import Floats
from extender.core.gauges import Gauge
from extender.core.resources.nodes import MAX_MEMORY_MIB
from extender.core.vendors.registry import VENDORS
from extender.core.vendors.vendor import PERCENT, Metric

_LARGEST: Final = {
    Gauge.MEMORY_USED: float(MAX_MEMORY_MIB),
    Gauge.MEMORY_FREE: float(MAX_MEMORY_MIB),
    Gauge.POWER: 5_000.0,
    Gauge.TEMPERATURE: 150.0,
    Gauge.XID: 10_000.0,
    Gauge.ROW_REMAP_FAILED: 1.0,
    Gauge.MEMORY_TOTAL: float(MAX_MEMORY_MIB),
    Gauge.NUM_MULTIPROCESSORS: 10_000.0,
    Gauge.NUM_DECODERS: 100.0,
    Gauge.NUM_ENCODERS: 100.0,
}
"""Largest valid value, in the gauge's unit. Larger ones are in another unit, or sentinels: exporters write
values from 2^31-16, 2^47 and 2^63-16 upwards if they have no value."""
_BLANK_INT32: Final = 2**31 - 16
_LARGEST_FRACTION: Final = 1.05  # interval averages overshoot a little

FRACTIONS: Final = frozenset({Gauge.LOAD, Gauge.ENCODER, Gauge.DECODER, Gauge.BANDWIDTH, Gauge.TENSOR})


ALIASES: Final = tuple(metric for vendor in VENDORS if vendor.exporter for metric in vendor.exporter.metrics)
ALIAS_OF: Final = {alias.name: alias for alias in ALIASES}


def known_names(names: Iterable[str]) -> list[Metric]:
    """The aliases among `names`, by gauge in order of preference."""
    present = set(names)
    return sorted((alias for alias in ALIASES if alias.name in present), key=lambda alias: (alias.gauge, alias.rank))


def read_values(alias: Metric, raw: Floats) -> tuple[Floats, int]:
    """(S,) samples in the gauge's unit, NaN where invalid, and the number of invalid ones.

    NaN, infinities, sentinels and values outside the gauge's range are invalid. A metric named as a ratio is taken as
    percent if its median is above one, as some exporters write it.
    """
    values = raw * alias.scale
    is_fraction = alias.gauge in FRACTIONS
    largest = _LARGEST_FRACTION if is_fraction else _LARGEST[alias.gauge]
    with np.errstate(invalid="ignore"):
        if alias.name.endswith("_RATIO"):
            busy = values[(values > 0) & (values <= 100)]
            if busy.size and np.median(busy) > _LARGEST_FRACTION:
                values = values * PERCENT
        blank = (raw >= _BLANK_INT32) & (raw < 2**31)
        usable = (values >= 0) & (values <= largest) & ~blank
    values = np.where(usable, values, np.nan)
    return np.minimum(values, 1.0) if is_fraction else values, int(len(values) - usable.sum())


_EXPORTERS: Final = tuple(vendor.exporter for vendor in VENDORS if vendor.exporter)


def _each(labels: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(label for label in labels if label))


HOST_LABELS: Final = _each(
    (
        *(label for exporter in _EXPORTERS for label in exporter.host),
        *("exported_hostname", "node", "nodename", "kubernetes_node", "node_name", "exported_node"),
    )
)
"""Labels that may name the node, in order of preference: the exporters', then those added by relabelling."""
_INDEX_LABELS: Final = _each(label for exporter in _EXPORTERS for label in exporter.index)
SHARD_LABELS: Final = _each(exporter.index[0] for exporter in _EXPORTERS if exporter.index)
"""Labels to split large queries by: each exporter's preferred index label."""
_UUID_LABELS: Final = _each(label for exporter in _EXPORTERS for label in exporter.uuid)
_INSTANCE_LABELS: Final = _each(exporter.instance for exporter in _EXPORTERS)
_PROFILE_LABELS: Final = _each(exporter.profile for exporter in _EXPORTERS)
_MODEL_LABELS: Final = _each(exporter.model for exporter in _EXPORTERS)
MODEL_OF: Final = {exporter.instance: exporter.model for exporter in _EXPORTERS if exporter.instance}
"""Model label by MIG instance label; the model tells the number of slices of which an instance has some."""

_MAX_CHARS: Final = 253
"""Longest name of a node, a pod or a GPU."""
POD_LABELS: Final = ("exported_namespace", "exported_pod", "namespace", "pod")
"""Labels of the pod that uses a GPU. A scrape with honorLabels false renames the exporter's to `exported_*`; `pod` is
then the exporter's own pod, as it is in all series without a pod."""
LABELS: Final = (*_INDEX_LABELS, *_UUID_LABELS, *_INSTANCE_LABELS, *_PROFILE_LABELS, *HOST_LABELS, "instance")
"""Labels that queries aggregate by, if a source has them."""
EVERY_LABEL: Final = frozenset({*LABELS, *MODEL_OF.values(), *POD_LABELS})
"""Labels to use if a source does not list its labels; those that it lacks are empty."""


class _Labels(msgspec.Struct, gc=False, frozen=True):
    """The relevant labels of one series; "" for missing ones."""

    def _all(self, labels: Sequence[str]) -> Iterator[str]:
        """The values of labels, without empty ones."""
        return filter(None, (getattr(self, _FIELD_OF[label]) for label in labels))

    def _first(self, labels: Sequence[str]) -> str:
        return next(self._all(labels), "")

    @property
    def instance_id(self) -> str:
        """The MIG instance's number; "" for a whole GPU."""
        return self._first(_INSTANCE_LABELS)

    @property
    def profile(self) -> str:
        """The MIG instance's profile; "" for a whole GPU."""
        return self._first(_PROFILE_LABELS)

    @property
    def model_name(self) -> str:
        """The GPU's product."""
        return self._first(_MODEL_LABELS)

    def pod_key(self) -> tuple[str, str]:
        """Namespace and name of the pod; "" if there is none."""
        exported_namespace, exported_pod, namespace, name = (
            getattr(self, _FIELD_OF[label])[:_MAX_CHARS] for label in POD_LABELS
        )
        return (exported_namespace, exported_pod) if exported_pod else (namespace, name)

    def of_gpu(self) -> "Labels":
        """The labels without the pod's."""
        return msgspec.structs.replace(self, **dict.fromkeys(map(_FIELD_OF.__getitem__, POD_LABELS), ""))

    def host(self) -> "Host":
        """The node's names and address."""
        names = dict.fromkeys(name[:_MAX_CHARS] for name in self._all(HOST_LABELS))
        return Host(tuple(names), self._first(("instance",))[:_MAX_CHARS])

    def device(self) -> "Device":
        """The GPU's index and UUID."""
        index = self._first(_INDEX_LABELS)
        return Device(
            int(index) if index.isascii() and index.isdigit() and len(index) <= 3 else -1,
            self._first(_UUID_LABELS)[:_MAX_CHARS],
        )


_ALL_LABELS: Final = _each((*LABELS, *_MODEL_LABELS, *POD_LABELS))
_FIELD_OF: Final = {label: f"label_{number}" for number, label in enumerate(_ALL_LABELS)}
if TYPE_CHECKING:
    Labels = _Labels
else:  # one field per label of all vendors, so that msgspec decodes them directly
    Labels = msgspec.defstruct(
        "Labels",
        [(field, str, msgspec.field(default="", name=label)) for label, field in _FIELD_OF.items()],
        bases=(_Labels,),
        gc=False,
        frozen=True,
    )


class Host(NamedTuple):
    """A node as its series name it."""

    names: tuple[str, ...]
    """In order of preference."""
    instance: str
    """The scraped address, such as "10.0.0.1:9400"."""


class Device(NamedTuple):
    """A GPU as its series name it."""

    number: int
    """Index on its node; -1 if unknown."""
    uuid: str


def labels_of(mapping: Mapping[str, str]) -> Labels:
    """The labels of a scraped sample."""
    return msgspec.convert({name: mapping[name] for name in _ALL_LABELS if name in mapping}, Labels)
