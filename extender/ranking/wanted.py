"""Which model the settings want."""

from pathlib import Path

from extender.ranking import files
from extender.settings.ranking import ModelMode, RankSettings


def path_of(wanted: RankSettings, *, ranks: bool) -> Path | None:
    """The directory of the model that is wanted where the deployment's policy is one that a model `ranks` by."""
    if wanted.mode is ModelMode.OFF:
        return None
    if wanted.path is not None:
        return wanted.path
    return files.RELEASED if ranks or wanted.mode is not ModelMode.SERVE else None
