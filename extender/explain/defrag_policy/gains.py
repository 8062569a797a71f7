"""What moves gain and what they lose, both in GPU-seconds.

How long a pod would wait otherwise nobody knows. It is taken to wait for as long again as it has waited already: what
has lasted for a time lasts for as long again at the median (Gott, Nature 363, 1993). Who has just come moves nobody.
"""

from typing import Final

MOST_WAITED_S: Final = 4 * 3600.0
"""No longer wait is counted on: by then something else will have ended."""
NODE_FREE_S: Final = 3600.0
"""For so long an autoscaler is taken to do without a node that it is given back."""


def gain_of_room(gpus: float, waited_s: float) -> float:
    """GPU-seconds that the target's GPUs would stand idle for otherwise; `gpus` are those that it asks for."""
    return gpus * min(max(waited_s, 0.0), MOST_WAITED_S)


def gain_of_nodes(gpus: float) -> float:
    """GPU-seconds that nobody pays for; `gpus` are those of the nodes that become empty."""
    return gpus * NODE_FREE_S


def pays(gain_gpu_s: float, cost_gpu_s: float, least_gain: float) -> bool:
    """Whether moves gain so many times what they lose at least; without any gain never."""
    return gain_gpu_s > 0 and gain_gpu_s >= least_gain * cost_gpu_s
