"""The verdict of a replay in sentences, or why there is none."""

import math
from collections.abc import Mapping
from typing import Any, Final

from model.pasts.trust import REPLAYED, spell

_LABELS: Final = {"kerf": "Kerf", REPLAYED: "kube-scheduler's default"}
SIZE_WORDS: Final = {
    "share": "a share of a GPU", "1": "1 GPU", "2-3": "2 or 3 GPUs", "4-7": "4 to 7 GPUs", "8+": "8 or more GPUs",
}  # fmt: skip
"""Descriptions of the job sizes (`accounts.SIZES`)."""
_LONGER_S: Final = 60.0
"""Least increase of the mean wait of a job size that is reported."""
_NOT_REPLAYED: Final = (
    "A replay has no quotas or other schedulers, and no maintenance or autoscaling that the history does not record."
)
_UNCHECKED: Final = (
    "The actual start times of pods are unknown, so these results could not be checked against what happened. "
    f"They are compared with a replay of {_LABELS[REPLAYED]}."
)
Figures = Mapping[str, Any]


def label(policy: str) -> str:
    """Return the display name of a policy."""
    return _LABELS.get(policy, policy)


def _whole_percent(percent: float) -> str:
    """Format a percentage, rounded down so that it is never overstated."""
    return f"{math.floor(percent + 1e-9)} %"


def verdict(policy: str, figures: Figures, beside: Figures, error: Figures, fewer: Figures | None) -> list[str]:
    """Return sentences, the headline first, that compare a policy's `figures` with the default's (`beside`)."""
    if error["trusted"] is False:
        return [
            "No verdict: the replay of your scheduler differs from what happened",
            *(f"{fault[0].upper()}{fault[1:]}." for fault in error["faults"]),
            _NOT_REPLAYED,
        ]
    fewer_sentences = _fewer(policy, fewer, trusted=bool(error["trusted"])) if fewer else []
    waited = _waiting(policy, figures, beside)
    found = [*fewer_sentences, waited + "."] if fewer_sentences else [waited]
    if figures["blocked_starts"] or beside["blocked_starts"]:
        count, default_count = (row["blocked_starts"] for row in (figures, beside))
        found.append(
            f"{count or 'No'} multi-GPU job{'s' * (count > 1)} waited because free GPUs were scattered; "
            f"with {label(REPLAYED)} {default_count or 'none'} did."
        )
    return [*found, _UNCHECKED] if error["trusted"] is None else found


def _fewer(policy: str, fewer: Figures, *, trusted: bool) -> list[str]:
    """Return sentences on how many fewer GPUs would have been enough, and by which limit."""
    name, row, default = label(policy), fewer["policies"][policy], fewer["policies"][REPLAYED]
    than = "it was" if trusted else f"under {label(REPLAYED)} on all nodes"
    allowed = spell(fewer["limits"]["gpu_delay_s"])
    if not row["served"]:
        return [
            f"{name} would not have needed fewer GPUs",
            f"Even with all GPUs, the mean wait, of all jobs or of one job size, is longer than {than} ({allowed}).",
        ]
    few = _whole_percent(row["percent"])
    if math.floor(row["percent"]) < 1:
        few_gpus = f"With {row['too_few_gpus']:,} GPUs, pods wait longer."
        return [f"With {name} you would have needed all of your GPUs", few_gpus]
    also = default["served"] and math.floor(default["percent"]) >= 1 and policy != REPLAYED
    headline = f"{'You' if trusted else 'In a replay you'} would have needed {few} fewer GPUs with {name}"
    if also:
        headline += f", {_whole_percent(default['percent'])} fewer without"
    return [
        headline,
        f"With {row['gpus']:,} of {fewer['gpus']:,} GPUs, the mean wait for GPUs is no longer than {than} ({allowed}); "
        f"with {row['too_few_gpus']:,} GPUs it is longer.",
        *_longer(row["waited"]["waiting"], fewer["limits"]["waiting"]),
    ]


def _longer(waits: Mapping[str, float], limits: Mapping[str, float]) -> list[str]:
    """Return a sentence on job sizes that wait longer, although the total mean does not grow."""
    sizes = [
        f"{SIZE_WORDS[size]} {spell(waited_s)} instead of {spell(limits[size])}"
        for size, waited_s in waits.items()
        if waited_s > limits[size] + _LONGER_S
    ]
    return [f"Some jobs then wait longer: those of {', '.join(sizes)}."] if sizes else []


def _waiting(policy: str, figures: Figures, beside: Figures) -> str:
    waits, others = spell(figures["gpu_delay_s"]), spell(beside["gpu_delay_s"])
    if policy == REPLAYED:
        return f"With {label(policy)}, the mean wait for GPUs would have been {waits}"
    return f"With all GPUs, the mean wait would have been {waits} with {label(policy)}, {others} with {label(REPLAYED)}"
