"""Supervised background tasks: they restart when they die, and say so when they die again and again."""

import asyncio
import logging

import pytest

from extender.kube.background import _MAX_DEATHS, Background, Tasks, repeat
from tests.kube.loops import in_loop
from tests.ledger.builders import until


class Worker:
    """Dies `deaths` times, then works until it is cancelled."""

    def __init__(self, deaths: int = 0) -> None:
        self.deaths = deaths
        self.num_begun = 0
        self.ended = False

    async def work(self) -> None:
        self.num_begun += 1
        if self.num_begun <= self.deaths:
            raise RecursionError("too deep")
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


@in_loop
async def test_a_task_that_dies_restarts(caplog: pytest.LogCaptureFixture) -> None:
    tasks, worker = Tasks(first_pause_s=0.0), Worker(deaths=3)
    tasks.begin("mirror", worker.work)
    await until(lambda: worker.num_begun == 4)
    assert (tasks.fault(), tasks.needs_restart(), tasks.num_deaths) == ("", "", 3)
    await tasks.end()
    assert worker.ended
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3


@in_loop
async def test_a_dead_needed_task_is_a_fault() -> None:
    tasks = Tasks(first_pause_s=60.0)
    tasks.begin("mirror", Worker(deaths=1).work)
    await until(lambda: tasks.fault() == "the mirror has stopped: too deep")
    assert (tasks.needs_restart(), tasks.lacking()) == ("", [])
    await tasks.end()
    assert tasks.fault() == "the mirror has stopped: cancelled"


@in_loop
async def test_a_needed_task_that_dies_again_and_again_ends_the_process() -> None:
    tasks, worker = Tasks(first_pause_s=0.0), Worker(deaths=_MAX_DEATHS)
    tasks.begin("mirror", worker.work)
    await until(lambda: worker.num_begun > _MAX_DEATHS)
    # It runs again, but has not recovered yet.
    assert (tasks.fault(), tasks.needs_restart()) == ("", "the mirror has died 5 times in a row: too deep")
    await tasks.end()


@in_loop
async def test_what_is_not_needed_is_never_fatal() -> None:
    tasks, worker = Tasks(first_pause_s=0.0), Worker(deaths=10**9)
    tasks.begin("telemetry", worker.work, needed=False)
    await until(lambda: worker.num_begun > _MAX_DEATHS)
    await until(lambda: tasks.lacking() == ["the telemetry has stopped: too deep"])
    assert (tasks.fault(), tasks.needs_restart()) == ("", "")
    await tasks.end()


@in_loop
async def test_tasks_return_or_are_ended_one_by_one() -> None:
    tasks, one, other, returned = Tasks(), Worker(), Worker(), asyncio.Event()

    async def start() -> None:
        returned.set()

    for name, work in (("one", one.work), ("other", other.work), ("start", start)):
        tasks.begin(name, work)
    await until(lambda: one.num_begun and other.num_begun and returned.is_set())
    await tasks.end("one")
    assert (one.ended, other.ended) == (True, False)
    tasks.begin("one", one.work)
    await until(lambda: one.num_begun == 2)
    assert (tasks.fault(), tasks.num_deaths) == ("", 0)
    await tasks.end()
    await tasks.end()


@in_loop
async def test_a_round_that_fails_costs_that_round(caplog: pytest.LogCaptureFixture) -> None:
    class Component(Background):
        num_rounds = 0

        async def round(self) -> None:
            self.num_rounds += 1
            if self.num_rounds == 1:
                raise RuntimeError("a bug")

        async def run(self) -> None:
            await repeat(self.round, 0.0, "a round")

    component = Component("part")
    component.start()
    await until(lambda: component.num_rounds > 2)
    assert (component.tasks.fault(), component.tasks.num_deaths) == ("", 0)
    await component.stop()
    assert component.tasks.fault() == "the part has stopped: cancelled"
    assert [(record.levelno, record.message) for record in caplog.records] == [(logging.ERROR, "a round failed")]
