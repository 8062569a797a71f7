"""GPU models."""

from extender.settings.section import Section


class ModelSettings(Section):
    """GPU models."""

    aliases: dict[str, list[str]] = {}
    """Names that pods may request, each with the GPU models it stands for: `big: [NVIDIA-H100-80GB-HBM3]`."""
