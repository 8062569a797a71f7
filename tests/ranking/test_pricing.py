"""Prices from the process: those of the LP, and what is said where there are none."""

import asyncio
import dataclasses
import os
import select
import subprocess
import sys

import numpy as np
import pytest

from extender.core.clusters import Cluster
from extender.core.fragmentation import expected_count
from extender.ranking import pricing
from extender.ranking.demands import Demand, Kind, demand_of
from extender.ranking.prices import prices
from extender.ranking.pricing import PricingError
from tests.core.builders import cluster_of, node

T4 = ("Tesla-T4", 15360)


@pytest.fixture
def demand() -> Demand:
    cluster: Cluster = dataclasses.replace(
        cluster_of({"a": node(*[T4] * 4), "b": node(*[T4] * 4)}),
        cpu_milli=np.array([32000, 32000]),
        memory_mib=np.array([131072, 131072]),
    )
    return demand_of(cluster, {Kind(2000, 1024, 1, 810): 3.0, Kind(1000, 1024, 1, 190): 1.0, Kind(500, 1): 9.0})


@pytest.mark.slow
def test_the_process_prices_as_the_function_does(demand: Demand) -> None:
    worth, cpu_s = asyncio.run(pricing.priced(demand, 1.0, 60.0))
    assert cpu_s > 0
    expected = expected_count(demand.asks, demand.count, 8)
    right = prices(demand.nodes, demand.asks, expected).worth
    assert all(np.array_equal(*pair) for pair in zip(worth, right, strict=True))
    assert worth.left[0, 1000] > worth.left[0, 800] == 0  # nobody wants so little


def test_a_process_that_takes_too_long_is_ended(demand: Demand) -> None:
    with pytest.raises(PricingError, match=r"within 0\.01 s"):
        asyncio.run(pricing.priced(demand, 1.0, 0.01))


ASK = """
import os, subprocess, sys
price = [sys.executable, "-m", "extender.ranking.pricing", str(os.getpid())]
print(subprocess.Popen(price).pid, flush=True)
input()
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed_after_s", [0.0, 2.0])
def test_the_process_ends_with_the_one_that_asked(killed_after_s: float) -> None:
    """Killed, that closes nothing and waits for nobody; the question is still coming in."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", ASK], stdin=pipe, stdout=pipe) as asking:
        assert asking.stdout is not None
        process = os.pidfd_open(int(asking.stdout.readline()))
        ended = select.poll()
        ended.register(process, select.POLLIN)
        assert not ended.poll(killed_after_s * 1000)
        asking.kill()
        assert ended.poll(20_000)
        os.close(process)


def test_without_scipy_it_says_so(demand: Demand, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """As on an installation without the extra: SciPy can't be imported in the process."""
    blocked = tmp_path / "scipy"  # type: ignore[operator]
    blocked.mkdir()
    (blocked / "__init__.py").write_text("raise ImportError('not installed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(PricingError, match="SciPy is not installed"):
        asyncio.run(pricing.priced(demand, 1.0, 60.0))
