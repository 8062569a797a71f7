"""Tasks in processes side by side, with the same results as one after the other."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Protocol, TypeVar

_Result = TypeVar("_Result")


class Run(Protocol):
    """Runs tasks, which can be pickled, and gives their results under their names, in their order."""

    def __call__(self, tasks: Mapping[str, Callable[[], _Result]], /) -> dict[str, _Result]: ...


@contextmanager
def side_by_side(jobs: int, tell: Callable[[str], None]) -> Iterator[Run]:
    """Run tasks in so many processes; `tell` hears the name of each as it begins, or, of several, as it is done."""

    def here(tasks: Mapping[str, Callable[[], _Result]], /) -> dict[str, _Result]:
        found = {}
        for name, task in tasks.items():
            tell(name)
            found[name] = task()
        return found

    if jobs == 1:
        yield here
        return
    fresh = multiprocessing.get_context("spawn")  # whoever forks beside a thread may hang
    with ProcessPoolExecutor(jobs, fresh) as pool:

        def there(tasks: Mapping[str, Callable[[], _Result]], /) -> dict[str, _Result]:
            futures = {name: pool.submit(task) for name, task in tasks.items()}
            name_of = {future: name for name, future in futures.items()}
            for future in as_completed(name_of):
                tell(name_of[future])
            return {name: future.result() for name, future in futures.items()}

        yield there
