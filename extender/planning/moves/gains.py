"""What moves gain: waiting that the target is spared, by the GPUs that it asks for.

Gain and cost are in one unit, GPU-seconds by which work ends sooner or later, so that their ratio tells whether moves
pay: above 1 the work of the cluster, each job weighing as many as it has GPUs, ends sooner in all.
"""

from typing import Final

_MOST_AHEAD_S: Final = 86400.0
"""Nobody is taken to have longer to wait than that: a pod that has waited for weeks must not be worth any number of
restarts."""


def gain_gpu_s(gpus_made_usable: float, waited_s: float, most_ahead_s: float = _MOST_AHEAD_S) -> float:
    """GPU-seconds of waiting that a target is spared if it starts now.

    `gpus_made_usable` are the GPUs that it asks for, all pods of a gang together, shares in part. How long it would
    wait otherwise nobody knows: it is taken to be as long as it has waited already (`waited_s`), `most_ahead_s` at
    most. That is the mean where waits are spread as widely as they are in queues for GPUs, and it is 0 for who has just
    come. What does not wait, such as nodes kept free for an autoscaler, has no `waited_s`: give the time for which the
    GPUs are of use. Raises ValueError for what is negative or no number.
    """
    for name, value in (("GPUs", gpus_made_usable), ("seconds waited", waited_s), ("seconds ahead", most_ahead_s)):
        if not value >= 0:
            raise ValueError(f"{value} {name}: must be 0 or more")
    return 0.0 if gpus_made_usable == 0 else gpus_made_usable * min(waited_s, most_ahead_s)


def is_worth(gain: float, cost: float, least_gain: float) -> bool:
    """Whether moves are worth making: they gain something, and `least_gain` GPU-seconds for each that they lose."""
    return gain > 0 and gain >= least_gain * cost
