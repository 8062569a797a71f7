"""Parallel tasks in processes, with the same results as in sequence."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Protocol, TypeVar

_Result = TypeVar("_Result")


class Run(Protocol):
    """Runs picklable tasks; returns their results by name, in the order of the tasks."""

    def __call__(self, tasks: Mapping[str, Callable[[], _Result]], /) -> dict[str, _Result]: ...


@contextmanager
def side_by_side(jobs: int, on_step: Callable[[str], None]) -> Iterator[Run]:
    """Yield a runner with `jobs` processes. It calls `on_step` with a task's name at its start or, with several
    processes, at its end."""

    def run_in_process(tasks: Mapping[str, Callable[[], _Result]], /) -> dict[str, _Result]:
        found = {}
        for name, task in tasks.items():
            on_step(name)
            found[name] = task()
        return found

    if jobs == 1:
        yield run_in_process
        return
    context = multiprocessing.get_context("spawn")  # forking a process with threads may hang
    with ProcessPoolExecutor(jobs, context) as pool:

        def run_in_pool(tasks: Mapping[str, Callable[[], _Result]], /) -> dict[str, _Result]:
            futures = {name: pool.submit(task) for name, task in tasks.items()}
            name_of = {future: name for name, future in futures.items()}
            for future in as_completed(name_of):
                on_step(name_of[future])
            return {name: future.result() for name, future in futures.items()}

        yield run_in_pool
