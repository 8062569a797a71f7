"""Kerf's parts: a folder each, and a line here. What is taken off here, with its folder, is gone: Kerf runs without it.

What a part is stands in `extender.settings.parts`, what it may bring in `extender.api.contributions`.
"""

NAMES = (
    "agent",
    "autoscaling",
    "certificates",
    "defrag",
    "dra",
    "history",
    "learning",
    "missing",
    "pipelines",
    "set_aside",
    "traces",
    "usage",
    "webhook",
    "what_if",
)  # fmt: skip
