"""Kerf's optional parts, a folder and a line below each. Kerf runs without a part whose folder and line are removed.

`extender.settings.parts` defines a part, `extender.api.contributions` what a part may contribute.
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
