"""Configuration of episodes: one validated value, from a YAML file and overrides.

```yaml
traces: /data/openb        # folder in the layout of openb; "" draws cluster and pods instead
trace: default
num_pods: 2000
reward: weighted
fragmentation_weight: 0.5
```
"""

from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

Reward = Literal["allocation", "fragmentation", "jct", "weighted"]


class ConfigError(ValueError):
    """A configuration that can't be used; says where and why."""


class EpisodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an episode is made of."""

    traces: str = ""
    """Folder of traces in the layout of openb; empty: nodes and pods are drawn
    (`model.simulations.scenarios.drawn_scenario`)."""
    trace: str = "default"
    num_nodes: int = 16
    """Of a drawn cluster."""
    num_pods: int = 128
    """Arrivals of an episode, its length when nothing is skipped."""
    departures: bool = False
    """Whether pods leave after their durations; without, every pod stays, as in the published experiments."""
    load: float = 1.0
    """With departures: GPU work submitted by capacity, over the time in which it is submitted."""
    rounds: int = 1
    """Scheduling rounds: how often a skipped pod is offered before it counts as refused."""
    max_skips: int = 1_000_000
    """Skips of an episode after which skipping is not offered: a bound on selectiveness."""
    reward: Reward = "allocation"
    """What is learned for: `allocation` (GPU share allocated), `fragmentation` (fragments avoided), `jct` (time that
    pods wait), or `weighted`, the sum of all by the weights below."""
    allocation_weight: float = 1.0
    fragmentation_weight: float = 0.0
    jct_weight: float = 0.0

    def __post_init__(self) -> None:
        for name, smallest in (("num_nodes", 1), ("num_pods", 1), ("rounds", 1), ("max_skips", 0)):
            if getattr(self, name) < smallest:
                raise ValueError(f"{name} must be {smallest} or more")
        if not 0.001 <= self.load <= 1000:
            raise ValueError("load must be between 0.001 and 1000")
        if self.reward == "jct" and not self.departures:
            raise ValueError("reward jct needs departures: true")


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


def to_yaml(config: EpisodeConfig) -> str:
    """A file that gives the same configuration."""
    text: str = yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False)
    return text
