"""Where an actor begins: a potential made by hand, and how far a step leads from it."""

from typing import Final, Literal

import numpy as np

from extender.core.clusters import Floats
from extender.core.valuenet.features import FEATURES

Start = Literal["fgd", "prices"]

_WEIGHTS: Final = {
    "fgd": {"fragment": -1.0},
    "prices": {
        "fragment": -0.75, "worth": 5.0, "cpu_short_half": 0.6, "cpu_short": 1.0, "cpu_short_more": 0.5,
        "gpu_wanted": 1.25,
    },
}  # fmt: skip
_QUANTUM: Final = {"fgd": 0.04, "prices": 0.2}  # FGD's: `potentials.fragments_only`
_REACH: Final = {
    **{"fragment": 0.5, "worth": 1.0, "cpu_short_half": 0.4, "cpu_short": 0.4, "cpu_short_more": 0.4},
    **{"gpu_wanted": 0.5, "worth_fed": 0.5, "node_idle": 0.5, "hosts_one": 0.3, "hosts_many": 0.3, "gpu_sqrt": 0.3},
}
_REACH_OTHERS: Final = 0.15
_LOG_QUANTUM_REACH: Final = 0.5


def beginning(start: Start) -> tuple[Floats, Floats]:
    """(D,) weights and logarithm of the quantum, and (D,) how far 1 of the actor's point leads."""
    weights = [_WEIGHTS[start].get(name, 0.0) for name in FEATURES]
    reach = [_REACH.get(name, _REACH_OTHERS) for name in FEATURES]
    return np.array([*weights, np.log(_QUANTUM[start])]), np.array([*reach, _LOG_QUANTUM_REACH])
