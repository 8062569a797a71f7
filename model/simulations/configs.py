"""Configuration of episodes, from a YAML file and overrides.

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
    """An invalid configuration; the message says where and why."""


class EpisodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How episodes are drawn and rewarded."""

    traces: str = ""
    """Folder of traces in the layout of openb; empty: each scenario draws its own cluster and pods."""
    trace: str = "default"
    """Name of the trace in the folder."""
    mixes: tuple[str, ...] = ("usual", "cpu-tight", "whole-nodes", "mostly-shares", "choosy", "many-gpus")
    """Kinds of mixes (model/workloads/configs/demo.yaml) for scenarios without traces; one is drawn for each."""
    num_nodes: int = 16
    """Number of the cluster's nodes drawn for each scenario."""
    num_pods: int = 256
    """Arrivals of an episode; 0: enough to overfill the cluster, as in the published experiments."""
    departures: bool = True
    """Whether pods leave after their durations; if not, every pod stays, as in the published experiments."""
    load: float | tuple[float, float] = (0.9, 1.3)
    """With departures: GPU work submitted relative to capacity, or the range it is drawn from for each episode.
    The cluster starts filled to that load with earlier pods."""
    patience_s: float = 6 * 3600.0
    """With departures: seconds after its arrival for which a pod may be skipped. It is offered after each departure."""
    rounds: int = 1
    """Without departures: offers of a skipped pod before it counts as refused."""
    max_skips: int = 1_000_000
    """Skips of an episode after which the skip is masked."""
    reward: Reward = "allocation"
    """Reward: `allocation` (GPU time used; without departures, GPUs allocated), `fragmentation` (avoided fragments),
    `jct` (waiting time of pods), or `weighted`, their sum by the weights below."""
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
        """Range of the load."""
        return self.load if isinstance(self.load, tuple) else (self.load, self.load)

    @property
    def weights(self) -> tuple[float, float, float]:
        """Weights of allocation, fragmentation and waiting in the reward."""
        if self.reward == "weighted":
            return self.allocation_weight, self.fragmentation_weight, self.jct_weight
        return float(self.reward == "allocation"), float(self.reward == "fragmentation"), float(self.reward == "jct")


def create_config(path: str | Path | None = None, **overrides: Any) -> EpisodeConfig:
    """Read the configuration from a YAML file, with overrides; defaults without a file.

    Raises ConfigError that names the file, the setting and the fault.
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
