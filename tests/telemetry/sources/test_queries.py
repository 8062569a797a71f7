"""PromQL as Kerf writes it."""

from extender.telemetry.aliases import ALIAS_OF
from extender.telemetry.sources import queries

PRESENT = {"__name__", "gpu", "UUID", "Hostname", "instance", "pod", "namespace", "job", "modelName", "device"}


def test_samples_keep_the_labels_that_matter() -> None:
    kept = queries.kept_labels(PRESENT)
    assert kept == ["gpu", "UUID", "Hostname", "instance"]
    used, free = ALIAS_OF["DCGM_FI_DEV_FB_USED"], ALIAS_OF["DCGM_FI_DEV_FB_FREE"]
    assert queries.samples(used, kept) == "max by (gpu, UUID, Hostname, instance) (DCGM_FI_DEV_FB_USED)"
    assert queries.samples(free, kept) == "min by (gpu, UUID, Hostname, instance) (DCGM_FI_DEV_FB_FREE)"
    assert queries.sample_times(used, kept) == "min by (Hostname, instance) (timestamp(DCGM_FI_DEV_FB_USED))"


def test_the_model_is_kept_for_mig_alone() -> None:
    assert "modelName" in queries.kept_labels(PRESENT | {"GPU_I_ID", "GPU_I_PROFILE"})


def test_pods_are_named_by_exported_labels_where_there_are_some() -> None:
    load = ALIAS_OF["DCGM_FI_DEV_GPU_UTIL"]
    assert queries.pod_usage(load, PRESENT) == 'avg by (namespace, pod) (DCGM_FI_DEV_GPU_UTIL{pod!=""})'
    exported = PRESENT | {"exported_pod", "exported_namespace"}
    asked = 'avg by (exported_namespace, exported_pod) (DCGM_FI_DEV_GPU_UTIL{exported_pod!=""})'
    assert queries.pod_usage(load, exported) == asked
    assert queries.pod_usage(load, PRESENT - {"pod"}) == ""


def test_many_series_are_asked_for_in_shards_that_leave_none_out() -> None:
    assert queries.shards(12_000, ["gpu"]) == [""]
    assert queries.shards(40_000, ["id"]) == [""]
    assert queries.shards(40_000, ["gpu"]) == [
        '{gpu=~"0|1"}',
        '{gpu=~"2|3"}',
        '{gpu=~"4|5"}',
        '{gpu=~"6|7"}',
        '{gpu!~"[0-7]"}',
    ]
