"""The model that the settings select."""

from pathlib import Path

from extender.ranking import files
from extender.settings.ranking import ModelMode, RankSettings


def model_path(wanted: RankSettings, *, ranks: bool) -> Path | None:
    """The directory of the configured model; None if there is none.

    The released model is the default if the policy `ranks` by a model, or the mode is canary or shadow.
    """
    if wanted.mode is ModelMode.OFF:
        return None
    if wanted.path is not None:
        return wanted.path
    return files.RELEASED if ranks or wanted.mode is not ModelMode.SERVE else None
