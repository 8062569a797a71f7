"""The writer's side of observations: samples as they come, aged, and the load expected of pods just placed."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Rows
from extender.core.observations import Gauge, Gauges, Observations, SampleState

NUM_GAUGES: Final = len(Gauge)


@dataclass(frozen=True, slots=True)
class SampleTimes:
    """How long samples count."""

    fresh_s: float = 90.0
    """Older samples are stale."""
    forget_s: float = 900.0
    """Older ones are as good as none."""
    warmup_s: float = 45.0
    """How long after its placement a pod's load may not show in samples."""


class ObservedArrays:
    """Samples of N rows with G slots, in arrays that are replaced and never changed."""

    def __init__(self, times: SampleTimes, num_rows: int, num_slots: int) -> None:
        self._times = times
        self._raw: Gauges = np.full((NUM_GAUGES, num_rows, num_slots), np.nan, np.float32)
        self._sampled_at = np.full(num_rows, -np.inf)
        self._placed: dict[int, list[tuple[float, tuple[int, ...], float]]] = {}
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
        rows, slots = min(num_rows, self.shape[0]), min(num_slots, self.shape[1])

        def grown(planes: Gauges) -> Gauges:
            larger = np.full((NUM_GAUGES, num_rows, num_slots), np.nan, np.float32)
            larger[:, :rows, :slots] = planes[:, :rows, :slots]
            return larger

        state = np.full(num_rows, SampleState.MISSING, np.int8)
        sampled_at = np.full(num_rows, -np.inf)
        expected = np.zeros((num_rows, num_slots), np.float32)
        state[:rows] = self.current.state[:rows]
        sampled_at[:rows] = self._sampled_at[:rows]
        expected[:rows, :slots] = self.current.expected_load[:rows, :slots]
        outdated = np.zeros((num_rows, num_slots), np.bool_)
        outdated[:rows, :slots] = self._outdated[:rows, :slots]
        self._outdated = outdated
        self._raw, self._sampled_at = grown(self._raw), sampled_at
        self._publish(grown(self.current.value), state, expected)

    def forget(self, row: int) -> None:
        """A row is another node's from now on."""
        self._placed.pop(row, None)
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
        return self.age(now)

    def age(self, now: float) -> Rows:
        """Let samples become stale and be forgotten; returns the rows whose effective samples changed."""
        age_s = now - self._sampled_at
        state = np.full(len(age_s), SampleState.MISSING, np.int8)
        state[age_s <= self._times.forget_s] = SampleState.STALE
        fresh = age_s <= self._times.fresh_s
        state[fresh] = SampleState.FRESH
        value = np.where(fresh[None, :, None], self._raw, np.float32(np.nan))
        expected = self._expected(now)
        before = self.current
        changed = (expected != before.expected_load).any(axis=1) | (state != before.state)
        changed |= (self._outdated != before.outdated).any(axis=1)
        for gauge in Gauge:
            old, new = before.value[gauge], value[gauge]
            changed |= ((old != new) & ~(np.isnan(old) & np.isnan(new))).any(axis=1)
        rows = np.flatnonzero(changed)
        if len(rows):
            self._publish(value, state, expected)
        elif not np.array_equal(self._sampled_at, before.sampled_at):
            self.current = replace(before, sampled_at=self._sampled_at)
        return rows

    def expect(self, row: int, slots: tuple[int, ...], load: float, now: float) -> None:
        """A pod was placed on a row's GPUs (all of them, a little each, when it is not known which)."""
        self._placed.setdefault(row, []).append((now, slots, load))
        expected = self.current.expected_load.copy()
        expected[row] = self._expected_of(row)
        self._publish(self.current.value, self.current.state, expected)

    def given_back(self, row: int, slots: tuple[int, ...]) -> None:
        """GPUs of a row have become freer: what their samples say of memory is of before."""
        self._outdated = self._outdated.copy()
        self._outdated[row, list(slots)] = True
        self.current = replace(self.current, version=self.current.version + 1, outdated=self._outdated)

    def _expected(self, now: float) -> npt.NDArray[np.float32]:
        """(N, G) what is still expected: until samples come that were taken a while after the placement."""
        warm, late = self._times.warmup_s, self._times.warmup_s + self._times.fresh_s
        for row in list(self._placed):
            shown_by = self._sampled_at[row] - warm
            kept = [item for item in self._placed[row] if item[0] > shown_by and item[0] > now - late]
            if kept:
                self._placed[row] = kept
            else:
                del self._placed[row]
        expected = np.zeros(self.shape, np.float32)
        for row in self._placed:
            expected[row] = self._expected_of(row)
        return expected

    def _expected_of(self, row: int) -> npt.NDArray[np.float32]:
        expected = np.zeros(self.shape[1], np.float32)
        for _, slots, load in self._placed[row]:
            expected[list(slots) if slots else slice(None)] += load if slots else load / max(self.shape[1], 1)
        result: npt.NDArray[np.float32] = np.minimum(expected, np.float32(1))
        return result

    def _publish(self, value: Gauges, state: npt.NDArray[np.int8], expected_load: npt.NDArray[np.float32]) -> None:
        for array in (value, state, expected_load, self._sampled_at):
            array.flags.writeable = False
        self.current = Observations(
            self.current.version + 1, value, state, self._sampled_at, expected_load, self._outdated
        )
