"""Work in the background: it comes back when it dies, and says so when it dies again and again."""

import asyncio
import logging

import pytest

from extender.kube.background import _MAX_DEATHS, Background, Tasks, repeat
from tests.ledger.builders import until


class Worker:
    """Dies as often as told, then works until it is ended."""

    def __init__(self, deaths: int) -> None:
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


def test_work_that_dies_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        tasks, worker = Tasks(first_pause_s=0.0), Worker(deaths=3)
        tasks.begin("mirror", worker.work)
        await until(lambda: worker.num_begun == 4)
        assert (tasks.fault(), tasks.hopeless(), tasks.num_deaths) == ("", "", 3)
        await tasks.end()
        assert worker.ended

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert [record.message.split(",")[0] for record in caplog.records] == ["the mirror has died"] * 3


def test_while_it_is_dead_that_is_a_fault() -> None:
    async def run() -> None:
        tasks, worker = Tasks(first_pause_s=60.0), Worker(deaths=1)
        tasks.begin("mirror", worker.work)
        await until(lambda: tasks.fault() == "the mirror has stopped: too deep")
        assert (tasks.hopeless(), tasks.lacking()) == ("", [])
        await tasks.end()
        assert tasks.fault() == "the mirror has stopped: cancelled"

    asyncio.run(run())


def test_what_dies_again_and_again_ends_the_process() -> None:
    async def run() -> None:
        tasks, worker = Tasks(first_pause_s=0.0), Worker(deaths=_MAX_DEATHS)
        tasks.begin("mirror", worker.work)
        await until(lambda: worker.num_begun > _MAX_DEATHS)
        # It is at work again: whether it stays there nobody knows yet.
        assert (tasks.fault(), tasks.hopeless()) == ("", "the mirror has died 5 times in a row: too deep")
        await tasks.end()

    asyncio.run(run())


def test_what_is_not_needed_is_never_fatal() -> None:
    async def run() -> None:
        tasks, worker = Tasks(first_pause_s=0.0), Worker(deaths=10**9)
        tasks.begin("telemetry", worker.work, needed=False)
        await until(lambda: worker.num_begun > _MAX_DEATHS)
        await until(lambda: tasks.lacking() == ["the telemetry has stopped: too deep"])
        assert (tasks.fault(), tasks.hopeless()) == ("", "")
        await tasks.end()

    asyncio.run(run())


def test_work_that_returns_is_done() -> None:
    async def run() -> None:
        tasks, done = Tasks(), asyncio.Event()

        async def work() -> None:
            done.set()

        tasks.begin("start", work)
        await done.wait()
        await tasks.end()
        assert (tasks.fault(), tasks.num_deaths) == ("", 0)

    asyncio.run(run())


def test_one_piece_of_work_is_ended_alone() -> None:
    async def run() -> None:
        tasks, one, other = Tasks(), Worker(0), Worker(0)
        tasks.begin("one", one.work)
        tasks.begin("other", other.work)
        await until(lambda: one.num_begun and other.num_begun)
        await tasks.end("one")
        assert (one.ended, other.ended) == (True, False)
        tasks.begin("one", one.work)
        await until(lambda: one.num_begun == 2)
        assert tasks.fault() == ""
        await tasks.end()
        await tasks.end()

    asyncio.run(run())


class Part(Background):
    """Works in rounds, of which the first fails."""

    def __init__(self) -> None:
        super().__init__("part")
        self.num_rounds = 0

    async def round(self) -> None:
        self.num_rounds += 1
        if self.num_rounds == 1:
            raise RuntimeError("a bug")

    async def run(self) -> None:
        await repeat(self.round, 0.0, "a round of the part")


def test_a_part_works_from_start_to_stop_and_a_round_that_fails_costs_that_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        part = Part()
        part.start()
        await until(lambda: part.num_rounds > 2)
        assert (part.tasks.fault(), part.tasks.num_deaths) == ("", 0)
        await part.stop()
        assert part.tasks.fault() == "the part has stopped: cancelled"

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert [record.message for record in caplog.records] == ["a round of the part failed"]
