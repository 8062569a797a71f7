"""What pods' authors write as patterns costs little memory, and no time where nobody asks."""

import gc
import random
import string
from collections.abc import Iterator
from typing import Any

import pytest
import re2

from extender.core.resources.requests import RequestError
from extender.kube.patterns import compile_pattern
from extender.ledger.ledger import Ledger
from extender.plugins.pods import read_holding, read_pod_request
from extender.scheduling.placer import Placer, PodIdentity
from tests.ledger.builders import Clock, node_object, pod_object

MOST = 64 + 128
"""Automata kept here, and by re2's own module."""
AUTOMATON = type(re2.compile("x"))


def heavy(number: int) -> str:
    """As large as they come: another one for each number, of which each test has its own."""
    rng = random.Random(number)
    return "|".join("".join(rng.choices(string.ascii_lowercase, k=24)) for _ in range(9))


def asking(number: int, **more: Any) -> Any:
    return pod_object(f"p{number}", 1, annotations={"kerf.dev/gpu-model": heavy(number)}, **more)


def num_automata() -> int:
    gc.collect()
    # `type`, not `isinstance`: that one reads `__class__`, and other libraries' objects warn when they are read.
    return sum(type(item) is AUTOMATON for item in gc.get_objects())


@pytest.fixture
def _new_objects_alone() -> Iterator[None]:
    """What other tests have left is neither counted nor looked through."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_new_objects_alone")
def test_many_remembered_pods_share_few_automata() -> None:
    clock = Clock()
    ledger = Ledger(reservation_ttl_s=30.0)
    ledger.upsert_node(node_object("n", 8))
    placer = Placer(ledger, default_policy="bestfit", clock=clock, wall_clock=clock)
    for number in range(MOST + 32):
        request = placer.read_request(asking(number))
        placer.remember(PodIdentity("default", f"p{number}", f"uid-{number}"), request)
        assert not placer.fits_somewhere(request)
    assert placer.remembered("uid-0") is not None
    assert num_automata() <= MOST


def test_pods_that_have_their_node_compile_nothing(compiled: list[str]) -> None:
    for number in range(1000, 1020):
        bound = asking(number, node="n")
        assert read_holding(bound)[0].units == 1
        request = read_pod_request(bound).gpus
        assert request is not None
        assert request.include is not None
        assert request.include.text == heavy(number)
    assert not compiled


def test_a_pattern_that_is_none_holds_and_finds_nothing_once_it_is_bound() -> None:
    annotations = {"kerf.dev/gpu-model": "a100("}
    with pytest.raises(RequestError, match="missing \\)"):
        read_pod_request(pod_object("p", 1, annotations=annotations))
    bound = pod_object("p", 1, node="n", annotations=annotations)
    assert read_holding(bound) == (read_holding(pod_object("p", 1, node="n"))[0], "")
    request = read_pod_request(bound).gpus
    assert request is not None
    assert request.include is not None
    assert not request.include.matches(["a100("])


@pytest.mark.parametrize(
    "text", ["(?i)" + "".join(f"({char}{{999}})" for char in string.ascii_lowercase), r"\pL" * 5, r"[\pL\PN]" * 20]
)
def test_what_takes_much_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"too large|Unicode classes"):
        compile_pattern(text)


def test_ordinary_ones_are_not() -> None:
    products = "|".join(f"nvidia-(a100|h100|h200)-(sxm{number}|pcie)-[0-9]+gb" for number in range(6))
    assert compile_pattern(products).search("nvidia-h100-sxm5-80gb")
    assert not compile_pattern(products).search("nvidia-l4")


def test_what_was_found_is_remembered_beyond_the_automaton(compiled: list[str]) -> None:
    first = compile_pattern(heavy(2000))
    assert first.search("x") is None
    for number in range(2001, 2000 + MOST):
        compile_pattern(heavy(number))
    assert len(compiled) == MOST
    assert first.search("x") is None
    assert len(compiled) == MOST
    first.search("y")
    assert len(compiled) == MOST + 1, "the automaton itself is not kept so long"
