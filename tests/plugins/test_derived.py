"""What depends on a pod alone is computed once for each version of it."""

import gc
import weakref

import pytest

from extender.core.resources.requests import RequestError
from extender.kube.objects import Pod
from extender.plugins.pods import cached_on_pod
from tests.ledger.builders import pod_object


class Held:
    """Must not be kept."""


def test_each_version_is_read_once() -> None:
    read = list[Pod]()

    @cached_on_pod
    def reader(pod: Pod) -> int:
        read.append(pod)
        return len(read)

    first, second = pod_object("p", 1), pod_object("p", 1)
    assert [reader(first), reader(second), reader(first), reader(second)] == [1, 2, 1, 2]
    assert read == [first, second]


def test_an_error_is_raised_again_and_keeps_no_frames() -> None:
    """Pods wait for long, and an error has the frames of its callers."""
    kept = list[weakref.ref[Held]]()

    def hold() -> Held:
        held = Held()
        kept.append(weakref.ref(held))
        return held

    @cached_on_pod
    def reader(pod: Pod) -> int:
        held = hold()
        try:
            return int(f"{held}")
        except ValueError:
            raise RequestError("no number") from None

    def ask(pod: Pod) -> None:
        held = hold()
        with pytest.raises(RequestError, match=r"^no number$"):
            reader(pod)
        assert held is not None

    pod = pod_object("p", 1)
    gc.freeze()  # what other tests have left is not searched
    try:
        for _ in range(3):
            ask(pod)
        gc.collect()
        assert [ref() for ref in kept] == [None] * 4, "it was read once"
    finally:
        gc.unfreeze()
