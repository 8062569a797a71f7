"""Tests that are coroutines."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

import uvloop

P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        uvloop.run(test(*args, **kwargs))

    return run
