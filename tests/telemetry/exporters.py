"""Exporters as the tests play them: pages in dcgm-exporter's text format byte for byte, and in ObserverWard's.

The form of a line is the template `gpuMetricsFormat` of internal/pkg/rendermetrics/render_metrics.go: at tag
4.5.3-4.8.2 with the label `Hostname`, at commit d5e5f510 (after that tag) with `hostname`. Names, types and help texts
up to 4.8 are those of etc/default-counters.csv at tag 4.5.3-4.8.2. Integers are printed by "%d", doubles by "%f"
(internal/pkg/collector/gpu_collector.go, `toString`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

MIB = 2**20


@dataclass
class Gpu:
    """The state of one GPU, or of one of its MIG instances."""

    number: int
    load: float = 0.0
    used_mib: int = 0
    total_mib: int = 40960
    reserved_mib: int = 600
    power_w: float = 60.0
    temperature_c: int = 35
    encoder: float = 0.0
    decoder: float = 0.0
    bandwidth: float = 0.0
    tensor: float = 0.0
    xid: int = 0
    row_remap_failed: int = 0
    multiprocessors: int = 108
    decoders: int = 5
    encoders: int = 0
    model: str = "NVIDIA A100-SXM4-40GB"
    uuid: str = ""
    pod: tuple[str, str, str] | None = None
    """Container, namespace and name of its pod."""
    mig: tuple[str, int] | None = None
    """Profile and id of the GPU instance."""

    def __post_init__(self) -> None:
        self.uuid = self.uuid or f"GPU-00000000-0000-0000-0000-{self.number:012d}"


@dataclass
class Node:
    """The node of one exporter."""

    name: str
    gpus: list[Gpu] = field(default_factory=list)
    driver: str = "535.129.03"


@dataclass(frozen=True)
class Dialect:
    """A release's names and units."""

    host_label: str
    legacy: bool


V4_8 = Dialect("Hostname", legacy=True)
V4_9 = Dialect("hostname", legacy=False)

Family = tuple[str, str, Callable[[Gpu], str]]
"""Name, help and the value of a GPU; "" for none."""


def dcgm_page(node: Node, dialect: Dialect) -> str:
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} gauge\n"
        + "".join(_line(node, gpu, dialect, name, value) for gpu in node.gpus if (value := value_of(gpu)))
        for name, text, value_of in (_LEGACY if dialect.legacy else _CURRENT)
    )


def _free_mib(gpu: Gpu) -> int:
    return gpu.total_mib - gpu.used_mib - gpu.reserved_mib


_LEGACY: Sequence[Family] = (
    ("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", lambda gpu: "1410"),
    ("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", lambda gpu: f"{gpu.temperature_c}"),
    ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", lambda gpu: f"{gpu.power_w:f}"),
    # A MIG instance has no utilisation of this kind.
    ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", lambda gpu: "" if gpu.mig else f"{gpu.load * 100:.0f}"),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", lambda gpu: f"{gpu.bandwidth * 100:.0f}"),
    ("DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (in %).", lambda gpu: f"{gpu.encoder * 100:.0f}"),
    ("DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (in %).", lambda gpu: f"{gpu.decoder * 100:.0f}"),
    ("DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered.", lambda gpu: f"{gpu.xid}"),
    ("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", lambda gpu: f"{_free_mib(gpu)}"),
    ("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", lambda gpu: f"{gpu.used_mib}"),
    ("DCGM_FI_DEV_FB_RESERVED", "Framebuffer memory reserved (in MiB).", lambda gpu: f"{gpu.reserved_mib}"),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed", lambda gpu: f"{gpu.row_remap_failed}"),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", lambda gpu: f"{gpu.load:f}"),
    (
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "Ratio of cycles the tensor (HMMA) pipe is active.",
        lambda gpu: f"{gpu.tensor:f}",
    ),
    (
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
        lambda gpu: f"{gpu.bandwidth:f}",
    ),
)
_CURRENT: Sequence[Family] = (
    ("DCGM_FI_DEV_SM_CLOCK_HERTZ", "SM clock frequency.", lambda gpu: "1410000000"),
    ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "GPU temperature.", lambda gpu: f"{gpu.temperature_c}"),
    ("DCGM_FI_DEV_BOARD_POWER_WATTS", "Power draw.", lambda gpu: f"{gpu.power_w:f}"),
    ("DCGM_FI_DEV_GPU_UTIL_RATIO", "GPU utilization.", lambda gpu: f"{gpu.load:f}"),
    ("DCGM_FI_DEV_MEMORY_UTIL_RATIO", "Memory utilization.", lambda gpu: f"{gpu.bandwidth:f}"),
    ("DCGM_FI_DEV_ENC_UTIL_RATIO", "Encoder utilization.", lambda gpu: f"{gpu.encoder:f}"),
    ("DCGM_FI_DEV_DEC_UTIL_RATIO", "Decoder utilization.", lambda gpu: f"{gpu.decoder:f}"),
    ("DCGM_FI_DEV_XID_ERROR", "Value of the last XID error encountered.", lambda gpu: f"{gpu.xid}"),
    ("DCGM_FI_DEV_FB_FREE_BYTES", "Framebuffer memory free.", lambda gpu: f"{_free_mib(gpu) * MIB}"),
    ("DCGM_FI_DEV_FB_USED_BYTES", "Framebuffer memory used.", lambda gpu: f"{gpu.used_mib * MIB}"),
    ("DCGM_FI_DEV_ROW_REMAP_FAILED", "Whether remapping has failed.", lambda gpu: f"{gpu.row_remap_failed}"),
    ("DCGM_FI_PROF_TENSOR_UTIL_RATIO", "Tensor activity.", lambda gpu: f"{gpu.tensor:f}"),
    ("DCGM_FI_PROF_DRAM_UTIL_RATIO", "Memory interface activity.", lambda gpu: f"{gpu.bandwidth:f}"),
)


def _line(node: Node, gpu: Gpu, dialect: Dialect, name: str, value: str) -> str:
    labels = [
        ("gpu", str(gpu.number)),
        ("UUID", gpu.uuid),
        ("pci_bus_id", f"00000000:{gpu.number + 1:02X}:00.0"),
        ("device", f"nvidia{gpu.number}"),
        ("modelName", gpu.model),
    ]
    if gpu.mig:
        labels += [("GPU_I_PROFILE", gpu.mig[0]), ("GPU_I_ID", str(gpu.mig[1]))]
    labels += [(dialect.host_label, node.name), ("DCGM_FI_DRIVER_VERSION", node.driver)]
    if gpu.pod:
        labels += zip(("container", "namespace", "pod"), gpu.pod, strict=True)
    if name.startswith("DCGM_FI_DEV_XID"):
        labels += [("err_code", value), ("err_msg", "No Error" if value == "0" else "Unknown Error")]
    text = ",".join(f'{key}="{label}"' for key, label in labels)
    return f"{name}{{{text}}} {value}\n"


_OBSERVERWARD: Mapping[str, Callable[[Gpu], float]] = {
    "dynamic_gpu_decoder_utilization": lambda gpu: gpu.decoder * 100,
    "dynamic_gpu_encoder_utilization": lambda gpu: gpu.encoder * 100,
    "dynamic_gpu_memory_utilization": lambda gpu: gpu.bandwidth * 100,
    "dynamic_gpu_power_usage_W": lambda gpu: gpu.power_w,
    "dynamic_gpu_used_global_memory_MiB": lambda gpu: gpu.used_mib,
    "dynamic_gpu_free_global_memory_MiB": lambda gpu: gpu.total_mib - gpu.used_mib,
    "static_gpu_memory_size": lambda gpu: gpu.total_mib,
    "static_gpu_multiprocessor_count": lambda gpu: gpu.multiprocessors,
    "static_gpu_shared_decoder_count": lambda gpu: gpu.decoders,
    "static_gpu_shared_encoder_count": lambda gpu: gpu.encoders,
}


def observerward_page(node: Node) -> str:
    """A node's page as Genius' exporter writes it; utilisations in percent."""
    lines: list[str] = []
    for family, value_of in _OBSERVERWARD.items():
        name = f"observerward_{family}"
        lines.append(f"# HELP {name} {name}\n# TYPE {name} gauge\n")
        for gpu in node.gpus:
            labels = f'id="{gpu.number}",kubernetes_node="{node.name}",model="{gpu.model}",uuid="{gpu.uuid}"'
            lines.append(f"{name}{{{labels}}} {value_of(gpu):g}\n")
    return "".join(lines)
