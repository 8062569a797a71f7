"""Fragments by table beside the sums that define them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.fragmentation import TypicalPod, fragment_milli, mix_of, tables_of, unusable_milli
from tests.model.builders import random_mix, random_nodes


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_tables_give_the_sums(seed: int, num_classes: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, mix = random_nodes(rng, 12), random_mix(rng, num_classes)
    cpu = nodes.cpu_free_milli.copy()
    cpu[:6] = rng.choice(mix.cpu_milli, 6) + rng.integers(-1, 2, 6)  # on the edges of the demands
    cpu, free = np.maximum(cpu, 0), nodes.gpu_free_milli.astype(np.int64)
    found = unusable_milli(cpu, free, nodes.model, tables_of(mix, 3, free.shape[1]))
    assert found == pytest.approx(fragment_milli(cpu, free, nodes.model, mix), abs=1e-6)


def test_shares_of_several_gpus_are_counted() -> None:
    mix = mix_of([TypicalPod(1000, 2, 300, -1, 3), TypicalPod(2000, 1, 1000, -1, 1)], 4)
    free = np.array([[500, 400, 0], [1000, 200, 0], [300, 300, 300]])
    cpu, model = np.array([5000, 1500, 999]), np.zeros(3, np.int64)
    # Two shares find 900 useful, a whole GPU nothing; one GPU is large enough and not two; no CPU.
    right = [900 - 0.75 * 900, 1200.0, 900.0]
    assert unusable_milli(cpu, free, model, tables_of(mix, 1, 3)) == pytest.approx(right)
    assert fragment_milli(cpu, free, model, mix) == pytest.approx(right)
