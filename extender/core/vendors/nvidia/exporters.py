"""Under which names exporters tell of NVIDIA's GPUs.

dcgm-exporter publishes DCGM's fields under the names of its counters file. Up to 4.8 those are the names and units of
`etc/default-counters.csv` at tag 4.5.3-4.8.2. DCGM 4.7's field list has twins in base units (bytes, ratios), which
newer counter files use: DCGM_FI_DEV_FB_USED_BYTES is field 1627 where DCGM_FI_DEV_FB_USED, in MiB, is field 252.
Another exporter is one more block of this table.
"""

from typing import Final

from extender.core.gauges import Gauge
from extender.core.vendors.vendor import PERCENT, Exporter, Metric

_LEGACY: Final = "dcgm-exporter up to 4.8"
_CURRENT: Final = "dcgm-exporter from 4.9"
_OBSERVERWARD: Final = "ObserverWard"
_MIB: Final = 1 / 2**20

_METRICS: Final = (
    Metric("DCGM_FI_DEV_GPU_UTIL", _LEGACY, Gauge.LOAD, PERCENT),
    Metric("DCGM_FI_PROF_GR_ENGINE_ACTIVE", _LEGACY, Gauge.LOAD, rank=1),  # all there is of MIG instances
    Metric("DCGM_FI_DEV_FB_USED", _LEGACY, Gauge.MEMORY_USED),
    Metric("DCGM_FI_DEV_FB_FREE", _LEGACY, Gauge.MEMORY_FREE),
    Metric("DCGM_FI_DEV_POWER_USAGE", _LEGACY, Gauge.POWER),
    Metric("DCGM_FI_DEV_GPU_TEMP", _LEGACY, Gauge.TEMPERATURE),
    Metric("DCGM_FI_DEV_ENC_UTIL", _LEGACY, Gauge.ENCODER, PERCENT),
    Metric("DCGM_FI_DEV_DEC_UTIL", _LEGACY, Gauge.DECODER, PERCENT),
    Metric("DCGM_FI_PROF_DRAM_ACTIVE", _LEGACY, Gauge.BANDWIDTH),
    Metric("DCGM_FI_DEV_MEM_COPY_UTIL", _LEGACY, Gauge.BANDWIDTH, PERCENT, rank=1),
    Metric("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", _LEGACY, Gauge.TENSOR),
    Metric("DCGM_FI_DEV_XID_ERRORS", _LEGACY, Gauge.XID),
    Metric("DCGM_FI_DEV_ROW_REMAP_FAILURE", _LEGACY, Gauge.ROW_REMAP_FAILED),
    Metric("DCGM_FI_DEV_FB_TOTAL", _LEGACY, Gauge.MEMORY_TOTAL),  # in others' counters files
    Metric("DCGM_FI_DEV_GPU_UTIL_RATIO", _CURRENT, Gauge.LOAD),
    Metric("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", _CURRENT, Gauge.LOAD, rank=1),
    Metric("DCGM_FI_DEV_FB_USED_BYTES", _CURRENT, Gauge.MEMORY_USED, _MIB),
    Metric("DCGM_FI_DEV_FB_FREE_BYTES", _CURRENT, Gauge.MEMORY_FREE, _MIB),
    Metric("DCGM_FI_DEV_BOARD_POWER_WATTS", _CURRENT, Gauge.POWER),
    Metric("DCGM_FI_DEV_GPU_TEMP_CELSIUS", _CURRENT, Gauge.TEMPERATURE),
    Metric("DCGM_FI_DEV_ENC_UTIL_RATIO", _CURRENT, Gauge.ENCODER),
    Metric("DCGM_FI_DEV_DEC_UTIL_RATIO", _CURRENT, Gauge.DECODER),
    Metric("DCGM_FI_PROF_DRAM_UTIL_RATIO", _CURRENT, Gauge.BANDWIDTH),
    Metric("DCGM_FI_DEV_MEMORY_UTIL_RATIO", _CURRENT, Gauge.BANDWIDTH, rank=1),
    Metric("DCGM_FI_PROF_TENSOR_UTIL_RATIO", _CURRENT, Gauge.TENSOR),
    Metric("DCGM_FI_DEV_XID_ERROR", _CURRENT, Gauge.XID),
    Metric("DCGM_FI_DEV_ROW_REMAP_FAILED", _CURRENT, Gauge.ROW_REMAP_FAILED),
    # Genius' exporter (jiangxiaosheng/ObserverWard); it has no load of the GPU.
    Metric("observerward_dynamic_gpu_used_global_memory_MiB", _OBSERVERWARD, Gauge.MEMORY_USED),
    Metric("observerward_dynamic_gpu_free_global_memory_MiB", _OBSERVERWARD, Gauge.MEMORY_FREE),
    Metric("observerward_dynamic_gpu_power_usage_W", _OBSERVERWARD, Gauge.POWER),
    Metric("observerward_dynamic_gpu_encoder_utilization", _OBSERVERWARD, Gauge.ENCODER, PERCENT),
    Metric("observerward_dynamic_gpu_decoder_utilization", _OBSERVERWARD, Gauge.DECODER, PERCENT),
    Metric("observerward_dynamic_gpu_memory_utilization", _OBSERVERWARD, Gauge.BANDWIDTH, PERCENT),
    Metric("observerward_static_gpu_memory_size", _OBSERVERWARD, Gauge.MEMORY_TOTAL),  # in MiB, though it says MB
    Metric("observerward_static_gpu_multiprocessor_count", _OBSERVERWARD, Gauge.NUM_MULTIPROCESSORS),
    Metric("observerward_static_gpu_shared_decoder_count", _OBSERVERWARD, Gauge.NUM_DECODERS),
    Metric("observerward_static_gpu_shared_encoder_count", _OBSERVERWARD, Gauge.NUM_ENCODERS),
)

EXPORTER: Final = Exporter(
    metrics=_METRICS,
    names=("dcgm-exporter", "nvidia-dcgm-exporter"),
    always="DCGM_FI_DEV_FB_USED",
    index=("gpu", "id"),
    uuid=("UUID", "uuid"),
    host=("Hostname", "hostname"),  # the latter since d5e5f510 (render_metrics.go)
    model="modelName",
    instance="GPU_I_ID",
    profile="GPU_I_PROFILE",
)
