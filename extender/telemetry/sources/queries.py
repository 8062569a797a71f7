"""PromQL: aggregated on the server, one query for each metric name, so that no answer is large.

Measured on 48,000 series: whole series 629 ms and 19.6 MB, aggregated by GPU 487 ms and 6.5 MB.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from extender.core.gauges import Gauge
from extender.core.vendors.vendor import Metric
from extender.telemetry.aliases import ALIASES
from extender.telemetry.series import HOST_LABELS, LABELS, MODEL_OF, POD_LABELS, SHARD_LABELS
from extender.telemetry.sources.prometheus_client import any_of, selector

_LEAST: Final = frozenset({Gauge.MEMORY_FREE})
"""Of several series of one GPU the least is the careful answer; of all other gauges the most."""
_SERIES_AT_ONCE: Final = 12_000


def every_name(matchers: str = "") -> str:
    """Selector of everything that the table of aliases knows."""
    return any_of((alias.name for alias in ALIASES), matchers)


def present_names(matchers: str = "") -> str:
    """How many series there are of each known name."""
    return f"count by (__name__) ({every_name(matchers)})"


def num_series(alias: Metric, matchers: str = "") -> str:
    """How many series there are of one name: for servers that match names exactly alone, as Google's does."""
    return f"count({selector(alias.name, matchers)})"


def kept_labels(present: Iterable[str]) -> list[str]:
    """The labels to aggregate by, of those that a source has."""
    found = set(present)
    kept: list[str] = [label for label in LABELS if label in found]
    return [*kept, *(model for instance, model in MODEL_OF.items() if instance in found and model in found)]


def samples(alias: Metric, labels: Sequence[str], shard: str = "", matchers: str = "") -> str:
    """One sample of each GPU, of all or of one shard."""
    reduce = "min" if alias.gauge in _LEAST else "max"
    return f"{reduce} by ({', '.join(labels)}) ({_sharded(alias, shard, matchers)})"


def shards(num_series: int, labels: Sequence[str]) -> list[str]:
    """Selectors that split the series of one name by index on the node, where they are so many that their answer
    would cost much memory."""
    index = next((label for label in SHARD_LABELS if label in labels), "")
    if num_series <= _SERIES_AT_ONCE or not index:
        return [""]
    pairs = [f'{{{index}=~"{number}|{number + 1}"}}' for number in range(0, 8, 2)]
    return [*pairs, f'{{{index}!~"[0-7]"}}']


def sample_times(alias: Metric, labels: Sequence[str], matchers: str = "") -> str:
    """Unix time of each node's oldest sample of one name: all series of a target are scraped at one time."""
    by = [label for label in labels if label in HOST_LABELS or label == "instance"]
    return f"min by ({', '.join(by)}) (timestamp({selector(alias.name, matchers)}))"


def pod_usage(alias: Metric, present: Iterable[str], shard: str = "", matchers: str = "") -> str:
    """One sample of each GPU of each pod; "" where series name no pods. Added up by whoever asks: another exporter's
    series of the same GPU is no second one."""
    found = set(present)
    by = [label for label in POD_LABELS if label in found]
    if not {"pod", "exported_pod"} & found:
        return ""
    named = "" if "exported_pod" in found else 'pod!=""'
    return f"max by ({', '.join([*by, *kept_labels(found)])}) ({_sharded(alias, shard, named, matchers)})"


def _sharded(alias: Metric, shard: str, *matchers: str) -> str:
    return selector(alias.name, shard[1:-1], *matchers)
