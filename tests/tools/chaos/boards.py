"""The faults of a run that are due, and how many of each kind took effect.

Everything here happens on one event loop.
"""

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator

from tests.tools.chaos.faults import APART, Fault, Kind
from tests.tools.chaos.zygotes import Replica


class Board:
    """Faults of one run, from `begin` to `end`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = float("inf")
        self._faults: list[Fault] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_held = 0
        self._recorded: set[Fault] = set()
        self.counts: Counter[Kind] = Counter()
        """Faults that really took effect."""
        self.replicas: list[Replica] = []
        """Kerf's processes."""
        self.leader = 0
        """The replica that schedulers are led to."""
        self.stopped: set[int] = set()
        """Replicas that a SIGSTOP holds."""
        self.touched: set[str] = set()
        """Names of claims from which devices were taken back."""
        self._cut_off_until = 0.0
        self._watchless_until = 0.0
        self._lapse: Fault | None = None
        self._lapse_until = 0.0

    def begin(self, faults: Iterable[Fault]) -> None:
        """The storm begins now."""
        self._began = self._clock()
        self._faults = sorted(faults, key=lambda fault: fault.at_s)
        self.counts.clear()
        self.touched.clear()
        self._recorded.clear()

    def end(self) -> None:
        """No fault begins any more."""
        self._faults.clear()

    @property
    def num_waiting(self) -> int:
        """Faults that wait for their occasion."""
        return sum(fault.kind not in APART for fault in self._faults)

    @property
    def num_pending(self) -> int:
        """Things that were begun and are not over: pauses, late writes."""
        return len(self._tasks) + self._num_held

    def record(self, kind: Kind) -> None:
        """A fault took effect."""
        self.counts[kind] += 1

    def record_once(self, fault: Fault) -> None:
        """A fault that lasts took effect, perhaps not for the first time."""
        if fault not in self._recorded:
            self._recorded.add(fault)
            self.record(fault.kind)

    def take(self, *kinds: Kind) -> Fault | None:
        """The first fault of these kinds that is due; it is not given out again."""
        now = self._clock() - self._began
        for index, fault in enumerate(self._faults):
            if fault.at_s > now:
                return None
            if fault.kind in kinds:
                return self._faults.pop(index)
        return None

    def lasting(self, kind: Kind) -> Fault | None:
        """A fault of that kind that is going on now."""
        return next(self.going_on(kind), None)

    def going_on(self, kind: Kind) -> Iterator[Fault]:
        """All of them."""
        now = self._clock() - self._began
        of_kind = (fault for fault in self._faults if fault.kind is kind)
        return (fault for fault in of_kind if fault.at_s <= now < fault.at_s + fault.for_s)

    def due(self, kind: Kind) -> bool:
        """Whether a fault of that kind waits for its occasion."""
        now = self._clock() - self._began
        return any(fault.kind is kind and fault.at_s <= now for fault in self._faults)

    def kill(self, kind: Kind, replica: int) -> Fault | None:
        """kill -9 of a replica, if that is due at this step of a bind."""
        fault = self.take(kind)
        if fault is None or not self.replicas[replica].running:
            return None
        self.replicas[replica].signal(signal.SIGKILL)
        self.record(kind)
        return fault

    def cut_off(self, fault: Fault, bindings_for_s: float, watches_for_s: float) -> None:
        """No replica reaches the API server for the fault's time, and its watches for some time more.

        Bindings that leave in the first moments suffer the fault as well.
        """
        now = self._clock()
        self._cut_off_until = now + fault.for_s
        self._watchless_until = now + fault.for_s + watches_for_s
        self._lapse, self._lapse_until = fault, now + bindings_for_s

    @property
    def lapse(self) -> Fault | None:
        """The lapse that Bindings suffer which leave now."""
        return self._lapse if self._clock() < self._lapse_until else None

    @property
    def is_cut_off(self) -> bool:
        """Whether no replica reaches the API server."""
        return self._clock() < self._cut_off_until

    @property
    def is_watchless(self) -> bool:
        """Whether no watch does."""
        return self._clock() < self._watchless_until

    def pause(self, fault: Fault, replica: int) -> None:
        """SIGSTOP a replica for the fault's time."""
        process = self.replicas[replica]
        if not process.running or replica in self.stopped:
            return
        process.signal(signal.SIGSTOP)
        self.stopped.add(replica)
        self.record(fault.kind)
        self.later(self._go_on(process, replica, fault))

    def jump(self, replica: int) -> None:
        """Set a replica's wall clock, if that is due."""
        runs = replica < len(self.replicas) and self.replicas[replica].running
        if runs and self.take(Kind.CLOCK_JUMP):
            self.replicas[replica].signal(signal.SIGUSR1)
            self.record(Kind.CLOCK_JUMP)

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """What happens in this block has to be over before the run is."""
        self._num_held += 1
        try:
            yield
        finally:
            self._num_held -= 1

    def later(self, work: Coroutine[None, None, None]) -> None:
        """Do something beside the request at hand; the run does not end before it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _go_on(self, process: Replica, replica: int, fault: Fault) -> None:
        began = time.monotonic()
        await asyncio.sleep(fault.for_s)
        if fault.kind is Kind.VM_PAUSE:
            process.missed.add(time.monotonic() - began)
        process.signal(signal.SIGCONT)
        self.stopped.discard(replica)
