"""How many functions Kerf calls for a pod, in Python and in C: numbers that no other load on the machine changes.

In this process, as shipped but for the API server, which is a cluster in memory of unlike nodes. What that cluster, the
benchmark and asyncio's loop call is not counted. The medians over all pods are of:
- `filter`, `bind`: the verb, through the app;
- `watch`: what is told of the pod when it is created and when it is bound;
- `round`: the queue's round that nominates a node for one gated pod and opens its gate, ranked by best fit.
"""

import asyncio
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from tests.api import bodies
from tests.api.services import Kerf, running
from tests.queueing.rigs import Rig
from tests.tools.bench import learned
from tests.tools.bench.servers import GPUS_PER_NODE, BenchError

_NUM_WARMING: Final = 30
_TESTS: Final = str(Path(__file__).parents[2])
_NOT_KERFS: Final = ("extender/kube/memory.py", "/selectors.py")
_EXTENDER: Final = str(Path(__file__).parents[3] / "extender")
_ASYNCIO: Final = str(Path(asyncio.__file__).parent)

Counts = dict[str, dict[str, int]]
"""By what is done: `python` and `c`."""


@dataclass(frozen=True)
class Plan:
    """What to count."""

    nodes: int = 500
    pods: int = 31

    num_steps: int = 2


def measure(plan: Plan, tell: Callable[[str], None]) -> Counts:
    """Run the plan. Raises BenchError where Kerf places no pod."""
    names = [f"node-{number:05}" for number in range(plan.nodes)]
    cluster = list(learned.cluster(names))
    tell("calls a pod: filter and bind")
    with running(cluster, model__mode="serve") as kerf:
        kerf.run(kerf.service.rank.round())
        found = [_placed(kerf, number, names) for number in range(_NUM_WARMING + plan.pods)]
    tell("calls a pod: round")
    rig = Rig()
    for name in names:
        rig.node(name, GPUS_PER_NODE)
    rounds = [_released(rig, number) for number in range(_NUM_WARMING + plan.pods)]
    every = [{**placed, "round": released} for placed, released in zip(found, rounds, strict=True)][_NUM_WARMING:]
    return {
        what: {kind: round(statistics.median(counted[what][kind] for counted in every)) for kind in ("python", "c")}
        for what in every[0]
    }


def _placed(kerf: Kerf, number: int, names: list[str]) -> dict[str, Counter[str]]:
    """Calls for one pod that kube-scheduler asks about."""
    pod = bodies.pod(f"counted-{number}", 1)
    with _counting() as of_watch:
        kerf.create(pod)
    pod = kerf.cluster.pod("default", f"counted-{number}")  # with its version, as kube-scheduler has it
    with _counting() as of_filter:
        answer = kerf.filter(pod, names)
    if not answer["NodeNames"]:
        raise BenchError(f"Kerf places no pod: {answer}")
    body = bodies.binding_args(pod, answer["NodeNames"][0])
    with _counting() as of_bind:
        error = kerf.post("/bind", body).json()["Error"]
    if error:
        raise BenchError(f"Kerf binds no pod: {error}")
    with _counting() as of_news:
        kerf.settle()
    return {"filter": of_filter, "bind": of_bind, "watch": of_watch + of_news}


def _released(rig: Rig, number: int) -> Counter[str]:
    """Calls for one pod that waits in the queue."""
    name = f"gated-{number}"
    rig.pod(name, 1)
    with _counting() as counted:
        rig.round()
    if not rig.node_of(name):
        raise BenchError(f"the queue does not release a pod: {rig.note(name)}")
    rig.bind(name)
    return counted


@contextmanager
def _counting() -> Iterator[Counter[str]]:
    """Counts what is called meanwhile, by `python` and `c`.

    A call belongs to the nearest caller in a file of Kerf or of the rig: what a library calls is its caller's.
    """
    counted: Counter[str] = Counter()
    kinds = {"call": "python", "c_call": "c"}
    stack = [False]

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            stack.append(_is_kerfs(frame.f_code.co_filename, stack[-1]))
        if (kind := kinds.get(event)) is not None:
            counted[kind] += stack[-1]
        if event == "return" and len(stack) > 1:
            stack.pop()

    sys.setprofile(note)
    try:
        yield counted
    finally:
        sys.setprofile(None)


def _is_kerfs(file: str, callers: bool) -> bool:
    """Whether what runs in a file is Kerf's work; `callers`: whether its caller is."""
    if file.startswith((_TESTS, _ASYNCIO)) or file.endswith(_NOT_KERFS):
        return False
    return callers or file.startswith(_EXTENDER)
