"""When a history is kept, and where."""

from pathlib import Path
from typing import Final

from pydantic import Field

from extender.settings.parts import Part
from extender.settings.section import Section


class HistorySettings(Section):
    """The history of the cluster: what was asked for, when, for how long, and where it went; see
    docs/guides/your-own-rank.md."""

    EXPERIMENTAL = frozenset({"flush_s", "roll_s"})

    path: Path | None = None
    """Folder for it, on a volume that survives restarts. Empty: nothing is kept."""
    max_mib: int = Field(default=256, ge=1)
    """Room for pods that have ended, in MiB; the oldest are given up. 100,000 pods take about 3."""
    hash_names: bool = False
    """Namespaces, owners and gangs are kept as keyed hashes; the key stays in the folder."""
    flush_s: float = Field(default=15.0, gt=0, le=60)
    """Interval of writing, in seconds: a crash loses no more."""
    roll_s: float = Field(default=3600.0, gt=0)
    """Interval at which what was written is made Parquet of, by a process of low priority."""


PART: Final = Part(
    name="history",
    settings=HistorySettings,
    wanted=lambda history: history.path is not None,
    module="extender.parts.history.part",
    makes=("path",),
    off={"/history": "no history is kept: setting history.path"},
)
