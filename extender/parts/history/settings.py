"""Settings of the history part."""

from pathlib import Path
from typing import Final

from pydantic import Field

from extender.settings.parts import Part
from extender.settings.section import Section


class HistorySettings(Section):
    """The history of the cluster: which pods requested what, when, for how long, and where they ran; see
    docs/guides/your-own-rank.md."""

    EXPERIMENTAL = frozenset({"flush_s", "roll_s"})

    path: Path | None = None
    """Folder for it, on a volume that survives restarts. Empty: no history."""
    max_mib: int = Field(default=256, ge=1)
    """Space for finished pods, in MiB; the oldest are dropped. 100,000 pods take about 3."""
    hash_names: bool = False
    """Whether namespaces, owners and gangs are recorded as keyed hashes; the key stays in the folder."""
    flush_s: float = Field(default=15.0, gt=0, le=60)
    """Interval of writing, in seconds; a crash loses at most this much."""
    roll_s: float = Field(default=3600.0, gt=0)
    """Interval, in seconds, at which journals are converted to Parquet by a low-priority process."""


PART: Final = Part(
    name="history",
    settings=HistorySettings,
    wanted=lambda history: history.path is not None,
    module="extender.parts.history.part",
    makes=("path",),
    off={"/history": "no history is recorded (setting history.path)"},
)
