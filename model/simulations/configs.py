"""Configuration of episodes: one validated value, from a YAML file and overrides.

```yaml
mixes: [usual, cpu-tight]
num_nodes: 32
load: [0.9, 1.2]
reward: weighted
jct_weight: 0.1
```
"""

from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import yaml

Reward = Literal["allocation", "fragmentation", "jct", "weighted"]
_LOADS: Final = (0.001, 1000.0)


class ConfigError(ValueError):
    """A configuration that can't be used; says where and why."""


class EpisodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an episode is made of."""

    traces: str = ""
    """Folder of traces in the layout of openb; empty: clusters and pods are drawn anew for each scenario."""
    trace: str = "default"
    """Of the folder."""
    mixes: tuple[str, ...] = ("usual", "cpu-tight", "whole-nodes", "mostly-shares", "choosy", "many-gpus")
    """Kinds of mixes (model/workloads/configs/demo.yaml), one of which is drawn from where there are no traces."""
    num_nodes: int = 16
    """So many of the cluster's nodes, drawn for each scenario."""
    num_pods: int = 256
    """Arrivals of an episode; 0: as many as fill the cluster and ask for more, as in the published experiments."""
    departures: bool = True
    """Whether pods leave after their durations; without, every pod stays, as in the published experiments."""
    load: float | tuple[float, float] = (0.9, 1.3)
    """With departures: GPU work submitted by capacity over the time, or a range that it is drawn from for each episode.
    The cluster begins as full as that, with pods that came before."""
    patience_s: float = 6 * 3600.0
    """With departures: how long after it has come a pod may be skipped. It is offered whenever another has left."""
    rounds: int = 1
    """Without departures: how often a skipped pod is offered before it counts as refused."""
    max_skips: int = 1_000_000
    """Skips of an episode after which skipping is not offered: a bound on selectiveness."""
    reward: Reward = "allocation"
    """What is learned for: `allocation` (GPU time used; without departures GPU given away), `fragmentation` (fragments
    avoided), `jct` (time that pods wait), or `weighted`, the sum of all by the weights below."""
    allocation_weight: float = 1.0
    fragmentation_weight: float = 0.0
    jct_weight: float = 0.0

    def __post_init__(self) -> None:
        for name, smallest in (("num_nodes", 1), ("num_pods", 0), ("rounds", 1), ("max_skips", 0), ("patience_s", 0)):
            if not getattr(self, name) >= smallest:
                raise ValueError(f"{name} must be {smallest} or more")
        low, high = self.loads
        if not _LOADS[0] <= low <= high <= _LOADS[1]:
            raise ValueError("load must be between 0.001 and 1000, or [low, high]")
        if self.reward == "jct" and not self.departures:
            raise ValueError("reward jct needs departures: true")
        if not self.traces and not self.mixes:
            raise ValueError("mixes must not be empty without traces")

    @property
    def loads(self) -> tuple[float, float]:
        """The range of the load."""
        return self.load if isinstance(self.load, tuple) else (self.load, self.load)

    @property
    def weights(self) -> tuple[float, float, float]:
        """Of allocation, fragmentation and waiting in the reward."""
        if self.reward == "weighted":
            return self.allocation_weight, self.fragmentation_weight, self.jct_weight
        return float(self.reward == "allocation"), float(self.reward == "fragmentation"), float(self.reward == "jct")


def create_config(path: str | Path | None = None, **overrides: Any) -> EpisodeConfig:
    """The configuration of a YAML file, single values replaced; defaults without a file.

    Raises ConfigError that names the file, the setting and what is wrong with it.
    """
    values: Any = {}
    source = "overrides" if path is None else str(path)
    try:
        if path is not None:
            values = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
        if not isinstance(values, dict):
            raise ConfigError(f"{source}: not a mapping of settings")
        return msgspec.convert({**values, **overrides}, EpisodeConfig)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError(f"{source}: {error}") from None
