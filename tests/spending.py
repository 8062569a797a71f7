"""How much processor time something takes."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fails where what is done takes this thread more processor time. Garbage of other tests is not collected meanwhile:
    a process that has run thousands of them takes a second for that."""
    gc.disable()
    began = time.thread_time()
    try:
        yield
        spent = time.thread_time() - began
    finally:
        gc.enable()
    assert spent < seconds
