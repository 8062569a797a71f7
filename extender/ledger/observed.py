"""The writer's side of observations: samples as they come, aged, and the load expected of pods just placed."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Rows
from extender.core.gauges import Gauge
from extender.core.observations import Gauges, Observations, SampleState
from extender.ledger.fields import grown

_NUM_GAUGES: Final = len(Gauge)
_NO_ROWS: Final[Rows] = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class SampleTimes:
    """How long samples count."""

    fresh_s: float = 90.0
    """Older samples are stale."""
    forget_s: float = 900.0
    """Older ones are as good as none."""
    warmup_s: float = 45.0
    """How long after its placement a pod's load may not show in samples."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A pod whose load may not show in samples yet."""

    at: float
    """Monotonic time."""
    slots: tuple[int, ...]
    load: float


class ObservedArrays:
    """Samples of N rows with G slots, in arrays that are replaced and never changed."""

    def __init__(self, times: SampleTimes, num_rows: int, num_slots: int) -> None:
        self._times = times
        self._raw: Gauges = np.full((_NUM_GAUGES, num_rows, num_slots), np.nan, np.float32)
        self._sampled_at = np.full(num_rows, -np.inf)
        self._placed: dict[int, dict[str, _Placed]] = {}  # by row and UID
        self._row_of: dict[str, int] = {}
        self.has_samples = False
        """Whether any ever came; until then nothing has to be kept in step with them."""
        self._outdated: npt.NDArray[np.bool_] = np.zeros((num_rows, num_slots), np.bool_)
        self.current = Observations(
            version=0,
            value=self._raw,
            state=np.full(num_rows, SampleState.MISSING, np.int8),
            sampled_at=self._sampled_at,
            expected_load=np.zeros((num_rows, num_slots), np.float32),
            outdated=self._outdated,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """N and G."""
        return self._raw.shape[1], self._raw.shape[2]

    def resize(self, num_rows: int, num_slots: int) -> None:
        """Grow to a cluster that has grown."""
        if self.shape == (num_rows, num_slots):
            return
        slots, planes = (num_rows, num_slots), (_NUM_GAUGES, num_rows, num_slots)
        before = self.current
        self._outdated = grown(self._outdated, slots, False)
        self._raw, self._sampled_at = grown(self._raw, planes, np.nan), grown(self._sampled_at, num_rows, -np.inf)
        state = grown(before.state, num_rows, SampleState.MISSING)
        self._publish(grown(before.value, planes, np.nan), state, grown(before.expected_load, slots, 0))

    def forget(self, row: int) -> None:
        """A row is another node's from now on."""
        for uid in self._placed.pop(row, {}):
            del self._row_of[uid]
        self._outdated = self._outdated.copy()
        self._outdated[row] = False
        if self._sampled_at[row] == -np.inf and not self.current.expected_load[row].any():
            return
        raw, value, sampled_at = self._raw.copy(), self.current.value.copy(), self._sampled_at.copy()
        state, expected = self.current.state.copy(), self.current.expected_load.copy()
        raw[:, row] = value[:, row] = np.nan
        sampled_at[row], state[row], expected[row] = -np.inf, SampleState.MISSING, 0
        self._raw, self._sampled_at = raw, sampled_at
        self._publish(value, state, expected)

    def begin(self) -> Gauges:
        """(M, N, G) a copy of all samples for a refresh to be written into."""
        return self._raw.copy()

    def commit(self, raw: Gauges, sampled_at: npt.NDArray[np.float64], now: float) -> Rows:
        """Take over a refresh; returns the rows that changed. `sampled_at` is (N,), of before where nothing came."""
        newer = sampled_at > self._sampled_at
        if self._outdated[newer].any():
            self._outdated = self._outdated & ~newer[:, None]
        self._raw, self._sampled_at = raw, sampled_at
        self.has_samples = self.has_samples or bool(newer.any())
        return self.age(now)

    def age(self, now: float) -> Rows:
        """Let samples become stale and be forgotten; returns the rows whose effective samples changed."""
        age_s = now - self._sampled_at
        state = np.full(len(age_s), SampleState.MISSING, np.int8)
        state[age_s <= self._times.forget_s] = SampleState.STALE
        fresh = age_s <= self._times.fresh_s
        state[fresh] = SampleState.FRESH
        value = self._raw
        if len(old := np.flatnonzero(~fresh & np.isfinite(self._sampled_at))):
            value = self._raw.copy()
            value[:, old] = np.nan
        expected = self._expected(now)
        before = self.current
        changed = (expected != before.expected_load).any(axis=1) | (state != before.state)
        changed |= (self._outdated != before.outdated).any(axis=1)
        # As bits: a NaN is equal to another, and one comparison does.
        changed |= (value.view(np.int32) != before.value.view(np.int32)).any(axis=0).any(axis=1)
        rows = np.flatnonzero(changed)
        if len(rows):
            self._publish(value, state, expected)
        elif not np.array_equal(self._sampled_at, before.sampled_at):
            self.current = replace(before, sampled_at=self._sampled_at)
        return rows

    def expect(self, uid: str, row: int, slots: tuple[int, ...], load: float, now: float) -> Rows:
        """A pod was placed on a row's GPUs (all of them, a little each, when it is not known which); what was expected
        of it before is forgotten. Returns the rows that changed."""
        before = self._drop(uid)
        self._placed.setdefault(row, {})[uid] = _Placed(now, slots, load)
        self._row_of[uid] = row
        return self._expect_again({row} | before)

    def expect_no_more(self, uid: str) -> Rows:
        """A pod will not come where it was placed. Returns the rows that changed."""
        return self._expect_again(self._drop(uid))

    def given_back(self, row: int, slots: tuple[int, ...]) -> None:
        """GPUs of a row have become freer: what their samples say of memory is of before."""
        self._outdated = self._outdated.copy()
        self._outdated[row, list(slots)] = True
        self.current = replace(self.current, version=self.current.version + 1, outdated=self._outdated)

    def _drop(self, uid: str) -> set[int]:
        """Forget a pod; returns its row, where it had one."""
        row = self._row_of.pop(uid, None)
        if row is None:
            return set()
        del self._placed[row][uid]
        return {row}

    def _expected(self, now: float) -> npt.NDArray[np.float32]:
        """(N, G) what is still expected: until samples come that were taken a while after the placement."""
        warm, late = self._times.warmup_s, self._times.warmup_s + self._times.fresh_s
        expected = np.zeros(self.shape, np.float32)
        for row, on_row in list(self._placed.items()):
            since = max(self._sampled_at[row] - warm, now - late)
            for uid in [uid for uid, placed in on_row.items() if placed.at <= since]:
                self._drop(uid)
            if on_row:
                expected[row] = self._expected_of(row)
            else:
                del self._placed[row]
        return expected

    def _expected_of(self, row: int) -> list[float]:
        """(G,) what is still expected on a row's GPUs. In plain numbers: there are a few pods on a few GPUs."""
        num_slots = self.shape[1]
        expected = [0.0] * num_slots
        for placed in self._placed[row].values():
            slots = [slot for slot in placed.slots if slot < num_slots]
            load = placed.load if slots else placed.load / num_slots
            for slot in slots or range(num_slots):
                expected[slot] += load
        return [min(load, 1.0) for load in expected]

    def _expect_again(self, rows: set[int]) -> Rows:
        if not rows:
            return _NO_ROWS
        expected = self.current.expected_load.copy()
        for row in rows:
            expected[row] = self._expected_of(row)
        expected.flags.writeable = False
        self.current = replace(self.current, version=self.current.version + 1, expected_load=expected)
        return np.array(sorted(rows), np.intp)

    def _publish(self, value: Gauges, state: npt.NDArray[np.int8], expected_load: npt.NDArray[np.float32]) -> None:
        for array in (value, state, expected_load, self._sampled_at):
            array.flags.writeable = False
        self.current = Observations(
            self.current.version + 1, value, state, self._sampled_at, expected_load, self._outdated
        )
