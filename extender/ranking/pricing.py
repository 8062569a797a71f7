"""Shadow prices from a process of their own: an LP takes seconds, SciPy 100 MB, and a request milliseconds.

The process reads tensors from its input and writes tensors to its output; without SciPy it says so and ends.
"""

import asyncio
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Final

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as tensors

from extender.core.clusters import Floats
from extender.core.fragmentation.arrays import Asks, Nodes
from extender.core.fragmentation.arrivals import expected_count
from extender.ranking.demands import Demand

_NODES, _ASKS = "nodes.", "asks."
_NICE: Final = 10
_MAX_WORDS: Final = 300
_LOOK_S: Final = 0.5


class PricingError(RuntimeError):
    """There are no prices: says why."""


@dataclass(slots=True)
class Priced:
    """What the prices in use are of."""

    worth: Floats | None = None
    """None: what is left of a GPU is worth as much as it is."""
    fault: str = ""
    """Why there are none of the LP."""
    nodes: object = None
    """Identity of the inventory."""
    at: float = float("-inf")
    """Monotonic time."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    num: int = 0
    """How often they were worked out."""


async def priced(demand: Demand, load: float, max_s: float) -> tuple[Floats, float]:
    """(m + 1, 1001) worth of each rest of a GPU when the demand fills the nodes to a load, and the CPU seconds it took.

    Raises PricingError.
    """
    asked = {_NODES + name: column for name, column in demand.nodes._asdict().items()}
    asked |= {_ASKS + name: column for name, column in demand.asks._asdict().items()}
    asked |= {"count": demand.count, "load": np.array([load])}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "extender.ranking.pricing", str(os.getpid())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    told = tensors.save({name: np.ascontiguousarray(column) for name, column in asked.items()})
    try:
        async with asyncio.timeout(max_s):
            answer, complaint = await process.communicate(told)
    except TimeoutError:
        raise PricingError(f"the LP did not finish within {max_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()  # its pipes are closed once they have been read to the end
    if process.returncode != 0:
        raise PricingError(complaint.decode(errors="replace").strip()[-_MAX_WORDS:] or "the process ended")
    try:
        found = tensors.load(answer)
        worth, cpu_s = found["worth"], float(found["cpu_s"][0])
    except (SafetensorError, KeyError) as error:
        raise PricingError(f"the answer can't be read: {error}") from None
    if not np.isfinite(worth).all():
        raise PricingError("the LP gives prices that are not finite")
    return worth, cpu_s


def _end_with(parent: int) -> None:
    """End when the process that asked has: nobody reads the answer."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def main() -> None:
    """The process; its argument is the number of the one that asks."""
    os.nice(_NICE)
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    try:
        from extender.ranking import prices
    except ImportError:
        sys.exit("SciPy is not installed (extra `plan`)")
    asked = tensors.load(sys.stdin.buffer.read())
    nodes = Nodes(*(asked[_NODES + name] for name in Nodes._fields))
    asks = Asks(*(asked[_ASKS + name] for name in Asks._fields))
    expected = expected_count(asks, asked["count"], int(nodes.num_gpus.sum()), float(asked["load"][0]))
    try:
        worth = prices.prices(nodes, asks, expected).worth
    except prices.PricesError as error:
        sys.exit(str(error))
    sys.stdout.buffer.write(tensors.save({"worth": worth, "cpu_s": np.array([time.process_time()])}))


if __name__ == "__main__":
    main()
