"""PromQL as Kerf writes it."""

from extender.telemetry.series import ALIAS_OF
from extender.telemetry.sources.prometheus import (
    _every_name,
    _kept_labels,
    _num_series,
    _pod_usage,
    _present_names,
    _sample_times,
    _samples_query,
    _shards,
)
from tests.golden import Golden

PRESENT = {"__name__", "gpu", "UUID", "Hostname", "instance", "pod", "namespace", "job", "modelName", "device"}


def test_queries(golden: Golden) -> None:
    kept = _kept_labels(PRESENT)
    assert kept == ["gpu", "UUID", "Hostname", "instance"]
    assert "modelName" in _kept_labels(PRESENT | {"GPU_I_ID", "GPU_I_PROFILE"}), "for MIG alone"
    load, used, free = (ALIAS_OF[f"DCGM_FI_DEV_{name}"] for name in ("GPU_UTIL", "FB_USED", "FB_FREE"))
    exported = PRESENT | {"exported_pod", "exported_namespace"}
    assert _pod_usage(load, PRESENT - {"pod"}) == ""
    plain = [
        _samples_query(used, kept),
        _samples_query(free, kept),
        _sample_times(used, kept),
        _pod_usage(load, PRESENT),
        _pod_usage(load, exported),
    ]
    ours, shard = 'cluster="a", team=~"x|y", ', '{gpu=~"0|1"}'
    matching = [
        _num_series(used, ours),
        _samples_query(used, kept, "", ours),
        _samples_query(used, kept, shard, ours),
        _sample_times(used, kept, ours),
        _pod_usage(used, PRESENT, "", ours),
        _pod_usage(used, exported, shard, ours),
    ]
    for query in (_present_names(ours), _every_name(ours), *matching):
        assert query.rstrip(")").endswith('cluster="a", team=~"x|y"}')
    golden("promql.txt", [*plain, *matching])


def test_many_series_are_asked_for_in_shards_that_leave_none_out() -> None:
    assert _shards(12_000, ["gpu"]) == _shards(40_000, ["id"]) == [""]
    pairs = [f'{{gpu=~"{first}|{first + 1}"}}' for first in (0, 2, 4, 6)]
    assert _shards(40_000, ["gpu"]) == [*pairs, '{gpu!~"[0-7]"}']
