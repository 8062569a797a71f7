"""Exporters as the tests play them: pages in dcgm-exporter's text format byte for byte, and in ObserverWard's.

The form of a line is the template `gpuMetricsFormat` of internal/pkg/rendermetrics/render_metrics.go: at tag
4.5.3-4.8.2 with the label `Hostname`, at commit d5e5f510 (after that tag) with `hostname`. Names, types and help texts
up to 4.8 are those of etc/default-counters.csv at tag 4.5.3-4.8.2. Integers are printed by "%d", doubles by "%f"
(internal/pkg/collector/gpu_collector.go, `toString`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MIB = 2**20


@dataclass
class Gpu:
    """What one GPU, or one MIG instance of it, is doing."""

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
    """Container, namespace and name of the pod that has it."""
    mig: tuple[str, int] | None = None
    """Profile and id of the GPU instance."""

    def __post_init__(self) -> None:
        self.uuid = self.uuid or f"GPU-00000000-0000-0000-0000-{self.number:012d}"


@dataclass
class Node:
    """What one exporter tells of."""

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

Family = tuple[str, str, list[str]]
"""Name, help and the value of each GPU."""


def dcgm_page(node: Node, dialect: Dialect) -> str:
    """A node's page."""
    gpus = node.gpus
    families = _legacy(gpus) if dialect.legacy else _current(gpus)
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} gauge\n"
        + "".join(_line(node, gpu, dialect, name, value) for gpu, value in zip(gpus, values, strict=True) if value)
        for name, text, values in families
    )


def _legacy(gpus: Sequence[Gpu]) -> list[Family]:
    whole = [gpu.mig is None for gpu in gpus]
    return [
        ("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", ["1410" for _ in gpus]),
        ("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", [f"{gpu.temperature_c}" for gpu in gpus]),
        ("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", [f"{gpu.power_w:f}" for gpu in gpus]),
        # A MIG instance has no utilisation of this kind.
        (
            "DCGM_FI_DEV_GPU_UTIL",
            "GPU utilization (in %).",
            [f"{gpu.load * 100:.0f}" if is_whole else "" for gpu, is_whole in zip(gpus, whole, strict=True)],
        ),
        ("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", [f"{gpu.bandwidth * 100:.0f}" for gpu in gpus]),
        ("DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (in %).", [f"{gpu.encoder * 100:.0f}" for gpu in gpus]),
        ("DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (in %).", [f"{gpu.decoder * 100:.0f}" for gpu in gpus]),
        ("DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered.", [f"{gpu.xid}" for gpu in gpus]),
        (
            "DCGM_FI_DEV_FB_FREE",
            "Framebuffer memory free (in MiB).",
            [f"{gpu.total_mib - gpu.used_mib - gpu.reserved_mib}" for gpu in gpus],
        ),
        ("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", [f"{gpu.used_mib}" for gpu in gpus]),
        ("DCGM_FI_DEV_FB_RESERVED", "Framebuffer memory reserved (in MiB).", [f"{gpu.reserved_mib}" for gpu in gpus]),
        (
            "DCGM_FI_DEV_ROW_REMAP_FAILURE",
            "Whether remapping of rows has failed",
            [f"{gpu.row_remap_failed}" for gpu in gpus],
        ),
        (
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
            "Ratio of time the graphics engine is active.",
            [f"{gpu.load:f}" for gpu in gpus],
        ),
        (
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
            "Ratio of cycles the tensor (HMMA) pipe is active.",
            [f"{gpu.tensor:f}" for gpu in gpus],
        ),
        (
            "DCGM_FI_PROF_DRAM_ACTIVE",
            "Ratio of cycles the device memory interface is active sending or receiving data.",
            [f"{gpu.bandwidth:f}" for gpu in gpus],
        ),
    ]


def _current(gpus: Sequence[Gpu]) -> list[Family]:
    free = [gpu.total_mib - gpu.used_mib - gpu.reserved_mib for gpu in gpus]
    return [
        ("DCGM_FI_DEV_SM_CLOCK_HERTZ", "SM clock frequency.", ["1410000000" for _ in gpus]),
        ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "GPU temperature.", [f"{gpu.temperature_c}" for gpu in gpus]),
        ("DCGM_FI_DEV_BOARD_POWER_WATTS", "Power draw.", [f"{gpu.power_w:f}" for gpu in gpus]),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", "GPU utilization.", [f"{gpu.load:f}" for gpu in gpus]),
        ("DCGM_FI_DEV_MEMORY_UTIL_RATIO", "Memory utilization.", [f"{gpu.bandwidth:f}" for gpu in gpus]),
        ("DCGM_FI_DEV_ENC_UTIL_RATIO", "Encoder utilization.", [f"{gpu.encoder:f}" for gpu in gpus]),
        ("DCGM_FI_DEV_DEC_UTIL_RATIO", "Decoder utilization.", [f"{gpu.decoder:f}" for gpu in gpus]),
        ("DCGM_FI_DEV_XID_ERROR", "Value of the last XID error encountered.", [f"{gpu.xid}" for gpu in gpus]),
        ("DCGM_FI_DEV_FB_FREE_BYTES", "Framebuffer memory free.", [f"{value * MIB}" for value in free]),
        ("DCGM_FI_DEV_FB_USED_BYTES", "Framebuffer memory used.", [f"{gpu.used_mib * MIB}" for gpu in gpus]),
        ("DCGM_FI_DEV_ROW_REMAP_FAILED", "Whether remapping has failed.", [f"{gpu.row_remap_failed}" for gpu in gpus]),
        ("DCGM_FI_PROF_TENSOR_UTIL_RATIO", "Tensor activity.", [f"{gpu.tensor:f}" for gpu in gpus]),
        ("DCGM_FI_PROF_DRAM_UTIL_RATIO", "Memory interface activity.", [f"{gpu.bandwidth:f}" for gpu in gpus]),
    ]


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


def observerward_page(node: Node) -> str:
    """A node's page as Genius' exporter writes it; utilisations in percent."""
    dynamic = "observerward_dynamic_gpu_"
    static = "observerward_static_gpu_"
    families: Iterable[tuple[str, list[float]]] = [
        (f"{dynamic}decoder_utilization", [gpu.decoder * 100 for gpu in node.gpus]),
        (f"{dynamic}encoder_utilization", [gpu.encoder * 100 for gpu in node.gpus]),
        (f"{dynamic}memory_utilization", [gpu.bandwidth * 100 for gpu in node.gpus]),
        (f"{dynamic}power_usage_W", [gpu.power_w for gpu in node.gpus]),
        (f"{dynamic}used_global_memory_MiB", [gpu.used_mib for gpu in node.gpus]),
        (f"{dynamic}free_global_memory_MiB", [gpu.total_mib - gpu.used_mib for gpu in node.gpus]),
        (f"{static}memory_size", [gpu.total_mib for gpu in node.gpus]),
        (f"{static}multiprocessor_count", [gpu.multiprocessors for gpu in node.gpus]),
        (f"{static}shared_decoder_count", [gpu.decoders for gpu in node.gpus]),
        (f"{static}shared_encoder_count", [gpu.encoders for gpu in node.gpus]),
    ]
    lines: list[str] = []
    for name, values in families:
        lines.append(f"# HELP {name} {name}\n# TYPE {name} gauge\n")
        for gpu, value in zip(node.gpus, values, strict=True):
            labels = f'id="{gpu.number}",kubernetes_node="{node.name}",model="{gpu.model}",uuid="{gpu.uuid}"'
            lines.append(f"{name}{{{labels}}} {value:g}\n")
    return "".join(lines)
