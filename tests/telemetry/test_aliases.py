"""Names and units of exporters: one table."""

import numpy as np
import pytest

from extender.core.gauges import Gauge
from extender.telemetry.series import ALIAS_OF, ALIASES, known_names, read_values

STATIC = frozenset({Gauge.MEMORY_TOTAL, Gauge.NUM_MULTIPROCESSORS, Gauge.NUM_DECODERS, Gauge.NUM_ENCODERS})
"""What GPUs have, not what they do."""


def test_every_dialect_gives_the_same_units() -> None:
    for name, raw, value in (
        ("DCGM_FI_DEV_GPU_UTIL", 87, 0.87),  # percent
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", 0.87, 0.87),
        ("DCGM_FI_DEV_FB_USED", 30000, 30000),  # MiB
        ("DCGM_FI_DEV_FB_USED_BYTES", 30000 * 2**20, 30000),
        ("observerward_dynamic_gpu_encoder_utilization", 50, 0.5),
        ("DCGM_FI_DEV_XID_ERRORS", 79, 79),
        ("DCGM_FI_PROF_DRAM_ACTIVE", 1.02, 1.0),  # interval averages overshoot
    ):
        values, num_refused = read_values(ALIAS_OF[name], np.array([raw], float))
        assert values.tolist() == pytest.approx([value])
        assert num_refused == 0


def test_sentinels_are_no_values_under_any_name() -> None:
    blanks = [2.0**31 - 16, 2.0**47, 2.0**63 - 16, 2.0**64]
    raw = np.array([float("nan"), float("inf"), float("-inf"), -1.0, *blanks, 0.0])
    for alias in ALIASES:
        values, num_refused = read_values(alias, raw)
        assert np.isnan(values[:-1]).all(), alias.name
        assert (values[-1], num_refused) == (0, len(raw) - 1), alias.name


def test_bytes_under_a_name_in_mib_are_refused() -> None:
    values, num_refused = read_values(ALIAS_OF["DCGM_FI_DEV_FB_USED"], np.array([30000.0 * 2**20, 30000.0]))
    assert np.isnan(values[0])
    assert values[1] == 30000
    assert num_refused == 1


def test_a_ratio_in_percent_is_understood_by_its_neighbours() -> None:
    alias = ALIAS_OF["DCGM_FI_DEV_GPU_UTIL_RATIO"]
    assert read_values(alias, np.array([0.0, 35.0, 1.0, 90.0]))[0].tolist() == pytest.approx([0, 0.35, 0.01, 0.9])
    # One wrong value does not turn ratios into hundredths: a busy GPU would look idle.
    values, num_refused = read_values(alias, np.array([0.9, 0.8, 35.0]))
    assert values[:2].tolist() == [0.9, 0.8]
    assert np.isnan(values[2])
    assert num_refused == 1


def test_names_are_unique_and_ranked() -> None:
    assert len(ALIAS_OF) == len(ALIASES)
    known = known_names(["DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL", "up", "DCGM_FI_DEV_FB_FREE"])
    assert [alias.name for alias in known] == [
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_DEV_FB_FREE",
    ]
    for exporter in ("dcgm-exporter up to 4.8", "dcgm-exporter from 4.9"):
        assert {alias.gauge for alias in ALIASES if alias.exporter == exporter} - STATIC == set(Gauge) - STATIC
    of_observerward = {alias.gauge for alias in ALIASES if alias.exporter == "ObserverWard"}
    assert of_observerward > STATIC
    assert Gauge.LOAD not in of_observerward
