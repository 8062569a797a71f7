"""How much processor time something takes."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fails where what is done takes this thread more processor time. No garbage is collected meanwhile: a process that
    has run thousands of tests takes a second for that."""
    gc.disable()
    began = time.thread_time()
    try:
        yield
        spent = time.thread_time() - began
    finally:
        gc.enable()
    assert spent < seconds
