"""Patterns written by pods' authors take little memory, and no time until they are evaluated."""

import gc
import random
import string
from typing import Any

import pytest
import re2

from extender.core.resources.gpu_models import ModelPattern
from extender.core.resources.requests import RequestError
from extender.kube.objects import Pod
from extender.kube.patterns import compile_pattern
from extender.ledger.ledger import Ledger
from extender.plugins.pods import read_holding, read_pod_request
from extender.scheduling.placer import Placer, PodIdentity
from tests.ledger.builders import Clock, node_object, pod_object

MOST = 64 + 128
"""Automata cached here, and by re2's own module."""
AUTOMATON = type(re2.compile("x"))


def heavy(number: int) -> str:
    """A pattern that is as large as they come."""
    rng = random.Random(number)
    return "|".join("".join(rng.choices(string.ascii_lowercase, k=24)) for _ in range(9))


def asking(number: int, **more: Any) -> Pod:
    return pod_object(f"p{number}", 1, annotations={"kerf.dev/gpu-model": heavy(number)}, **more)


def model_of(pod: Pod) -> ModelPattern:
    """The pattern of models that a pod requests."""
    request = read_pod_request(pod).gpus
    assert request is not None
    assert request.include is not None
    return request.include


def test_many_remembered_pods_share_few_automata() -> None:
    clock, ledger = Clock(), Ledger(reservation_ttl_s=30.0)
    ledger.upsert_node(node_object("n", 8))
    placer = Placer(ledger, default_policy="bestfit", clock=clock, wall_clock=clock)
    gc.freeze()  # what other tests have left is not counted
    for number in range(MOST + 32):
        request = placer.read_request(asking(number))
        placer.remember(PodIdentity("default", f"p{number}", f"uid-{number}"), request)
        assert not placer.fits_somewhere(request)
    assert placer.remembered("uid-0") is not None
    gc.collect()
    # `type`, not `isinstance`, which reads `__class__`: some libraries' objects then warn.
    num_automata = sum(type(item) is AUTOMATON for item in gc.get_objects())
    gc.unfreeze()
    assert num_automata <= MOST


def test_pods_with_a_node_compile_nothing(compiled: list[str]) -> None:
    for number in range(1000, 1020):
        bound = asking(number, node="n")
        assert read_holding(bound)[0].units == 1
        assert model_of(bound).text == heavy(number)
    assert not compiled


def test_an_invalid_pattern_holds_and_matches_nothing_once_its_pod_is_bound() -> None:
    annotations = {"kerf.dev/gpu-model": "a100("}
    with pytest.raises(RequestError, match="missing \\)"):
        read_pod_request(pod_object("p", 1, annotations=annotations))
    bound = pod_object("p", 1, node="n", annotations=annotations)
    assert read_holding(bound) == (read_holding(pod_object("p", 1, node="n"))[0], "")
    assert not model_of(bound).matches(["a100("])


def test_expensive_patterns_are_refused_and_ordinary_ones_are_not() -> None:
    repeated = "(?i)" + "".join(f"({char}{{999}})" for char in string.ascii_lowercase)
    for text in (repeated, r"\pL" * 5, r"[\pL\PN]" * 20):
        with pytest.raises(ValueError, match=r"too large|Unicode classes"):
            compile_pattern(text)
    products = "|".join(f"nvidia-(a100|h100|h200)-(sxm{number}|pcie)-[0-9]+gb" for number in range(6))
    assert compile_pattern(products).search("nvidia-h100-sxm5-80gb")
    assert not compile_pattern(products).search("nvidia-l4")


def test_results_are_cached_for_longer_than_automata(compiled: list[str]) -> None:
    first = compile_pattern(heavy(2000))
    assert first.search("x") is None
    for number in range(2001, 2000 + MOST):
        compile_pattern(heavy(number))
    assert len(compiled) == MOST
    assert first.search("x") is None
    assert len(compiled) == MOST
    first.search("y")
    assert len(compiled) == MOST + 1
