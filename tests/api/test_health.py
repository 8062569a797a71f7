"""Probes when background tasks die."""

from extender.kube.background import _MAX_DEATHS, Tasks
from tests.api.services import Kerf, running
from tests.ledger.builders import until


def kill(kerf: Kerf, name: str, times: int, *, needed: bool) -> Tasks:
    """Add a task that dies this many times to those of the service."""
    tasks = Tasks(first_pause_s=0.0)

    async def work() -> None:
        if tasks.num_deaths < times:
            raise RecursionError("too deep")
        await until(lambda: False)

    async def begin() -> None:
        tasks.begin(name, work, needed=needed)
        await until(lambda: tasks.num_deaths == times)

    kerf.service.tasks = [*kerf.service.tasks, tasks]
    kerf.run(begin())
    return tasks


def test_a_needed_task_that_dies_repeatedly_needs_a_restart() -> None:
    with running() as kerf:
        assert (kerf.get("/healthz").status, kerf.get("/healthz").json()) == (200, {"status": "ok"})
        tasks = kill(kerf, "waker", _MAX_DEATHS, needed=True)
        answer = kerf.get("/healthz")
        assert (answer.status, answer.json()) == (503, {"status": "the waker has died 5 times in a row: too deep"})
        kerf.run(tasks.end())


def test_a_few_deaths_need_no_restart() -> None:
    with running() as kerf:
        tasks = kill(kerf, "waker", _MAX_DEATHS - 1, needed=True)
        assert kerf.get("/healthz").status == 200
        kerf.run(tasks.end())


def test_a_dead_optional_task_only_degrades() -> None:
    with running() as kerf:
        tasks = Tasks(first_pause_s=60.0)

        async def work() -> None:
            raise RecursionError("too deep")

        async def begin() -> None:
            tasks.begin("observer", work, needed=False)
            await until(lambda: bool(tasks.lacking()))

        kerf.service.tasks = [*kerf.service.tasks, tasks]
        kerf.run(begin())
        assert kerf.get("/healthz").status == 200
        ready = kerf.get("/readyz")
        assert (ready.status, ready.json()["degraded"]) == (200, ["the observer has stopped: too deep"])
        kerf.run(tasks.end())


def test_all_work_of_the_service_is_watched_over_and_counted() -> None:
    with running(queue__enabled=True) as kerf:
        names = {name for tasks in kerf.service.tasks for name in tasks.names}
        assert {"mirror nodes", "mirror pods", "mirror devices", "election", "leadership", "waker", "resolver"} <= names
        assert {"queue", "event writer 0", "learned rank"} <= names
        assert kerf.metric("kerf_task_deaths_total") == 0
