"""What follows from a pod alone is worked out once for each version of it."""

import gc
import weakref

import pytest

from extender.core.resources.requests import RequestError
from extender.kube.objects import Pod
from extender.plugins.pods import once
from tests.ledger.builders import pod_object


class Held:
    """Something that is not to be kept."""


def test_each_version_is_read_once() -> None:
    read = list[Pod]()

    @once
    def reader(pod: Pod) -> int:
        read.append(pod)
        return len(read)

    first, second = pod_object("p", 1), pod_object("p", 1)
    assert [reader(first), reader(second), reader(first), reader(second)] == [1, 2, 1, 2]
    assert read == [first, second]


def test_a_fault_is_told_again_and_keeps_nothing_of_what_led_to_it() -> None:
    """Pods wait for long, and an error has the frames of all who were asking."""
    kept = list[weakref.ref[Held]]()
    num_read = 0

    @once
    def reader(pod: Pod) -> int:
        nonlocal num_read
        num_read += 1
        try:
            return int(f"{ask_with()}")
        except ValueError:
            raise RequestError("no number") from None

    def ask_with() -> str:
        held = Held()
        kept.append(weakref.ref(held))
        raise ValueError(held)

    def ask(pod: Pod) -> None:
        held = Held()
        kept.append(weakref.ref(held))
        with pytest.raises(RequestError, match=r"^no number$"):
            reader(pod)

    pod = pod_object("p", 1)
    gc.freeze()  # what other tests have left is not looked through
    try:
        for _ in range(3):
            ask(pod)
        gc.collect()
        assert num_read == 1
        assert [ref() for ref in kept] == [None] * 4
    finally:
        gc.unfreeze()
