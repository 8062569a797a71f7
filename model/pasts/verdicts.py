"""What a replay says in sentences, or why it does not."""

import math
from collections.abc import Mapping
from typing import Any, Final

from model.pasts.trust import REPLAYED, spell

_LABELS: Final = {"kerf": "Kerf", REPLAYED: "kube-scheduler's default"}
SIZE_WORDS: Final = {
    "share": "a share of a GPU", "1": "1 GPU", "2-3": "2 or 3 GPUs", "4-7": "4 to 7 GPUs", "8+": "8 GPUs and more",
}  # fmt: skip
"""What jobs of a size (`accounts.SIZES`) ask for."""
_LONGER_S: Final = 60.0
"""Who waits so much longer than under the limits is told of."""
_NOT_REPLAYED: Final = (
    "Quotas, other schedulers, maintenance and autoscaling that the history does not tell of are not in a replay."
)
_UNCHECKED: Final = (
    "When pods really started is not known: nothing of this could be checked against what happened. "
    f"It is compared with a replay of {_LABELS[REPLAYED]}."
)
Figures = Mapping[str, Any]


def label(policy: str) -> str:
    """A policy as people call it."""
    return _LABELS.get(policy, policy)


def _whole_percent(percent: float) -> str:
    """Rounded down: nothing is claimed that was not reached."""
    return f"{math.floor(percent + 1e-9)} %"


def verdict(policy: str, figures: Figures, beside: Figures, error: Figures, fewer: Figures | None) -> list[str]:
    """Sentences, the headline first: a policy's `figures` `beside` those of the default, as far as `error` allows."""
    if error["trusted"] is False:
        return [
            "No verdict: the replay of your scheduler differs from what happened",
            *(f"{fault[0].upper()}{fault[1:]}." for fault in error["faults"]),
            _NOT_REPLAYED,
        ]
    sought = _fewer(policy, fewer, trusted=bool(error["trusted"])) if fewer else []
    waited = _waiting(policy, figures, beside)
    found = [*sought, waited + "."] if sought else [waited]
    if figures["blocked_starts"] or beside["blocked_starts"]:
        mine, others = (row["blocked_starts"] for row in (figures, beside))
        found.append(
            f"{mine or 'No'} job{'s' * (mine != 1)} of several GPUs waited although as many were free, but scattered; "
            f"with {label(REPLAYED)} {others or 'none'} did."
        )
    return [*found, _UNCHECKED] if error["trusted"] is None else found


def _fewer(policy: str, fewer: Figures, *, trusted: bool) -> list[str]:
    """How many GPUs less would have done, and what that is measured by."""
    name, row, default = label(policy), fewer["policies"][policy], fewer["policies"][REPLAYED]
    than = "they did" if trusted else f"under {label(REPLAYED)} on all nodes"
    allowed = spell(fewer["limits"]["gpu_delay_s"])
    if not row["served"]:
        return [
            f"{name} would not have needed fewer GPUs",
            f"Even on all of them pods wait longer, all together or those of one size, than {than}, {allowed}.",
        ]
    few = _whole_percent(row["percent"])
    if math.floor(row["percent"]) < 1:
        return [f"With {name} you would have needed all of your GPUs", f"On {row['too_few_gpus']:,} pods wait longer."]
    also = default["served"] and math.floor(default["percent"]) >= 1 and policy != REPLAYED
    headline = f"{'You' if trusted else 'In a replay you'} would have needed {few} fewer GPUs with {name}"
    if also:
        headline += f", {_whole_percent(default['percent'])} fewer without"
    return [
        headline,
        f"On {row['gpus']:,} of {fewer['gpus']:,} GPUs the same pods wait no longer for GPUs in the mean than {than}, "
        f"{allowed}; on {row['too_few_gpus']:,} they do.",
        *_longer(row["waited"]["waiting"], fewer["limits"]["waiting"]),
    ]


def _longer(waits: Mapping[str, float], limits: Mapping[str, float]) -> list[str]:
    """Who pays for it: a mean may stay as it is while one size waits longer and another less."""
    told = [
        f"{SIZE_WORDS[size]} {spell(waited_s)} instead of {spell(limits[size])}"
        for size, waited_s in waits.items()
        if waited_s > limits[size] + _LONGER_S
    ]
    return [f"Some wait longer there, and others less: jobs of {', '.join(told)}."] if told else []


def _waiting(policy: str, figures: Figures, beside: Figures) -> str:
    waits, others = spell(figures["gpu_delay_s"]), spell(beside["gpu_delay_s"])
    if policy == REPLAYED:
        return f"With {label(policy)} pods would have waited {waits} for GPUs in the mean"
    return (
        f"On all GPUs pods would have waited {waits} in the mean with {label(policy)}, {others} with {label(REPLAYED)}"
    )
