"""A real Prometheus, scraping two leaders in turn: what it answers is what was booked."""

import asyncio
import itertools
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from extender.kube.leadership import LeadTime
from extender.parts.usage.asking import _ask
from extender.parts.usage.budgets import DAY_S, Budgets
from extender.parts.usage.metrics import gpu_hour_metrics
from extender.parts.usage.past import Past
from extender.parts.usage.questions import PastError, PrometheusAnswer, PrometheusQuery
from extender.parts.usage.report import Usage
from extender.parts.usage.steps import Span, added
from extender.telemetry.sources.source import Access
from tests.ledger.builders import Clock
from tests.parts.usage.rigs import Rig
from tests.telemetry.prometheuses import Job, backfill, prometheus

SPAN_S, FAILS_AT_S, LEASE_S, SCRAPE_S, TICK_S = 4 * 3600, 2 * 3600, 15, 15, 5
NAMESPACES = ("x", "y", "z")
NOBODY = LeadTime("", float("-inf"), float("-inf"))


@dataclass
class Scrapes:
    """What Prometheus reads of each instance."""

    began: float
    """Unix time of the beginning."""
    samples: dict[str, dict[str, list[tuple[float, float]]]] = field(default_factory=lambda: defaultdict(dict))
    """Time and value by family and series."""

    def take(self, instance: str, usage: Usage, at_s: float) -> None:
        for family in gpu_hour_metrics(usage):
            if family.type != "counter":
                continue
            for sample in family.samples:
                labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
                series = f'{sample.name}{{instance="{instance}",{labels}}}'
                self.samples[family.name].setdefault(series, []).append((self.began + at_s, sample.value))

    def text(self) -> str:
        """In OpenMetrics' form."""
        return "\n".join([*self._lines(), "# EOF", ""])

    def _lines(self) -> Iterator[str]:
        for family, series in self.samples.items():
            yield f"# TYPE {family} counter"
            for name, samples in series.items():
                yield from (f"{name} {value} {at:.3f}" for at, value in samples)


@dataclass
class World:
    """Two replicas that see the same pods, of which the first is killed."""

    clock: Clock = field(default_factory=lambda: Clock(0.0))
    booked: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """GPU-seconds by namespace, by the pods' own times."""

    def __post_init__(self) -> None:
        self.rigs = [Rig(clock=self.clock), Rig(clock=self.clock, standby="standby", led=NOBODY)]
        for rig in self.rigs:
            rig.node("a", 64)
            rig.node("b", 64)

    def usage(self, number: int) -> Usage:
        rig = self.rigs[number]
        return Usage(rig.meter, Budgets({}, DAY_S), None, lambda: rig.standby, self.clock, self.clock)

    def lead(self) -> None:
        """As the Lease has it at this time, renewed every two seconds."""
        first, second = self.rigs
        now = self.clock()
        renewed = now // 2 * 2
        if now <= FAILS_AT_S:
            first.led = LeadTime("1", 0.0, renewed)
        elif now >= FAILS_AT_S + LEASE_S:
            second.standby, second.led = "", LeadTime("2", float(FAILS_AT_S), renewed)


def lived(scrapes: Scrapes, seed: int) -> World:
    """Some hours of short jobs, each with an owner of its own, and a fail-over."""
    world, chance = World(), random.Random(seed)
    ends: list[tuple[float, str]] = []
    usages = [world.usage(0), world.usage(1)]
    for step in range(SPAN_S // TICK_S):
        world.clock.now = now = float(step * TICK_S)
        world.lead()
        for end, name in [item for item in ends if item[0] <= now]:
            ends.remove((end, name))
            for rig in world.rigs:
                rig.gone(name)
        if chance.random() < 0.08 and now < SPAN_S - 1500 and len(ends) < 14:
            name, gpus, lasts = f"job-{step}-x", chance.choice([1, 2, 4]), chance.uniform(30, 1200)
            node, namespace = chance.choice("ab"), chance.choice(NAMESPACES)
            for rig in world.rigs:
                rig.pod(name, gpus, node, namespace)
            ends.append((now + lasts, name))
            world.booked[namespace] += gpus * lasts
        for number, rig in enumerate(world.rigs):
            if number or now <= FAILS_AT_S:
                rig.tick()
                if step % (SCRAPE_S // TICK_S) == 0:
                    scrapes.take(f"kerf-{number}", usages[number], now)
    return world


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, str]]:
    """The world, and the address of a Prometheus that has scraped it."""
    folder = tmp_path_factory.mktemp("usage")
    scrapes = Scrapes(time.time() - SPAN_S - 30)
    world = lived(scrapes, 7)
    backfill(folder, scrapes.text())
    with prometheus(folder, [Job("none", "127.0.0.1:1/metrics")]) as running:
        yield world, running.url


def question(url: str, by: str = "namespace", window_s: int = SPAN_S + 3600) -> PrometheusQuery:
    return PrometheusQuery(url, Access(), window_s, by)


def answered(asked: PrometheusQuery) -> PrometheusAnswer:
    found = _ask(asked)
    assert found.fault == ""
    return found


def counted(world: World, by: str) -> Mapping[str, float]:
    """GPU-seconds that both have counted."""
    found: defaultdict[str, float] = defaultdict(float)
    for rig in world.rigs:
        for name, seconds in rig.booked(by).items():
            found[name] += seconds
    return found


@pytest.mark.slow
def test_prometheus_tells_what_was_booked_over_a_fail_over(asked: tuple[World, str]) -> None:
    """Also of short jobs, each with an owner of its own."""
    world, url = asked
    told = {name: row[0] for name, row in answered(question(url)).rows.items()}
    assert set(told) == set(NAMESPACES)
    for name, seconds in told.items():
        # `increase` stretches a little to the end of a series; and the last scrape of who was killed was before it.
        assert seconds == pytest.approx(counted(world, "namespace")[name], rel=0.01)
        # Pods come and go between two looks.
        assert seconds == pytest.approx(world.booked[name], rel=0.02)
    rows = answered(question(url, "owner")).rows
    assert sum(row[0] for row in rows.values()) == pytest.approx(sum(world.booked.values()), rel=0.02)
    assert len(rows) > 50
    answer = answered(question(url, "model"))
    capacity, *parts = answer.totals
    assert capacity == pytest.approx(128 * SPAN_S, rel=0.01)
    assert capacity == pytest.approx(sum(parts) + sum(row[0] for row in answer.rows.values()), rel=0.01)


@pytest.mark.slow
def test_a_prometheus_that_has_nothing_of_kerf_says_so(asked: tuple[World, str]) -> None:
    _, url = asked
    found = _ask(PrometheusQuery(url, Access(), 3600, "namespace", 'cluster="other"'))
    assert "has no kerf_capacity_gpu_seconds_total of that time" in found.fault


@pytest.mark.slow
def test_step_by_step_it_is_what_was_booked_and_adds_up(asked: tuple[World, str]) -> None:
    world, url = asked
    span = Span(SPAN_S + 3600, 1800)
    steps = asyncio.run(Past(url, Access(), "", Clock()).steps(span, time.time()))
    assert [after.at - before.at for before, after in itertools.pairwise(steps)] == [1800] * (len(steps) - 1)
    for step in steps:
        if not step.seconds:  # the first minute alone, in which series are 0
            assert not any(step.amounts)
            continue
        capacity, free, stranded, sick, booked, *_ = step.amounts
        # Each counter is stretched a little to the ends of a step by itself.
        assert capacity == pytest.approx(free + stranded + sick + booked, rel=0.02)
        assert booked == pytest.approx(sum(step.booked.values()))
        assert capacity / step.seconds == pytest.approx(128, rel=0.01)
    told: dict[str, float] = {}
    for step in steps:
        told = added(told, step.booked)
    assert told == pytest.approx(counted(world, "namespace"), rel=0.02)


@pytest.mark.slow
def test_the_process_that_asks_answers_the_same(asked: tuple[World, str]) -> None:
    _, url = asked
    found = asyncio.run(Past(url, Access(), "", Clock()).answer(SPAN_S + 3600, "namespace"))
    assert set(found.rows) == set(NAMESPACES)
    with pytest.raises(PastError, match="no connection"):
        asyncio.run(Past("http://127.0.0.1:1", Access(), "", Clock()).answer(3600, "namespace"))
