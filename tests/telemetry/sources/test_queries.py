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

PRESENT = {"__name__", "gpu", "UUID", "Hostname", "instance", "pod", "namespace", "job", "modelName", "device"}


def test_samples_keep_the_labels_that_matter() -> None:
    kept = _kept_labels(PRESENT)
    assert kept == ["gpu", "UUID", "Hostname", "instance"]
    used, free = ALIAS_OF["DCGM_FI_DEV_FB_USED"], ALIAS_OF["DCGM_FI_DEV_FB_FREE"]
    assert _samples_query(used, kept) == "max by (gpu, UUID, Hostname, instance) (DCGM_FI_DEV_FB_USED)"
    assert _samples_query(free, kept) == "min by (gpu, UUID, Hostname, instance) (DCGM_FI_DEV_FB_FREE)"
    assert _sample_times(used, kept) == "min by (Hostname, instance) (timestamp(DCGM_FI_DEV_FB_USED))"


def test_the_model_is_kept_for_mig_alone() -> None:
    assert "modelName" in _kept_labels(PRESENT | {"GPU_I_ID", "GPU_I_PROFILE"})


def test_pods_are_asked_for_gpu_by_gpu_by_all_labels_that_may_name_them() -> None:
    load, of_gpu = ALIAS_OF["DCGM_FI_DEV_GPU_UTIL"], "gpu, UUID, Hostname, instance"
    asked = f'max by (namespace, pod, {of_gpu}) (DCGM_FI_DEV_GPU_UTIL{{pod!=""}})'
    assert _pod_usage(load, PRESENT) == asked
    exported = PRESENT | {"exported_pod", "exported_namespace"}
    by = "exported_namespace, exported_pod, namespace, pod"
    assert _pod_usage(load, exported) == f"max by ({by}, {of_gpu}) (DCGM_FI_DEV_GPU_UTIL)"
    assert _pod_usage(load, PRESENT - {"pod"}) == ""


def test_matchers_are_part_of_every_query() -> None:
    used, kept, ours = ALIAS_OF["DCGM_FI_DEV_FB_USED"], ["gpu", "UUID", "Hostname"], 'cluster="a", team=~"x|y", '
    exported = PRESENT | {"exported_pod"}
    asked = [
        _present_names(ours),
        _every_name(ours),
        _num_series(used, ours),
        _samples_query(used, kept, "", ours),
        _samples_query(used, kept, '{gpu=~"0|1"}', ours),
        _sample_times(used, kept, ours),
        _pod_usage(used, PRESENT, "", ours),
        _pod_usage(used, exported, '{gpu=~"0|1"}', ours),
    ]
    assert all('cluster="a", team=~"x|y"}' in query for query in asked)
    assert asked[4] == 'max by (gpu, UUID, Hostname) (DCGM_FI_DEV_FB_USED{gpu=~"0|1", cluster="a", team=~"x|y"})'


def test_many_series_are_asked_for_in_shards_that_leave_none_out() -> None:
    assert _shards(12_000, ["gpu"]) == [""]
    assert _shards(40_000, ["id"]) == [""]
    assert _shards(40_000, ["gpu"]) == [
        '{gpu=~"0|1"}',
        '{gpu=~"2|3"}',
        '{gpu=~"4|5"}',
        '{gpu=~"6|7"}',
        '{gpu!~"[0-7]"}',
    ]
