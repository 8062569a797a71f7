"""What NVIDIA's library says of the GPUs, as JSON on standard output: `python -m extender.parts.agent.nvidia`; and
where its driver does.

A process of its own: the library is the driver's, its memory is not the agent's to keep, and where a driver hangs or
crashes, that is not the agent's end.
"""

import itertools
import json
import sys
from typing import Any

_MIB = 2**20
COMMAND = (sys.executable, "-m", __name__)
"""What prints what the library says."""
INFORMATION = "proc/driver/nvidia/gpus/*/information"
"""The driver's files, one a GPU, below the root. It numbers GPUs by their place on the bus, and so do these files'
folders. Until somebody opens a GPU its UUID is all question marks there."""


def main() -> int:
    """Print the GPUs; 1 and a sentence where the library can't tell them."""
    import pynvml as nvml

    try:
        nvml.nvmlInit()
        try:
            print(json.dumps(_gpus(nvml)))
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _gpus(nvml: Any) -> list[dict[str, Any]]:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    links = _link_groups(nvml, handles)
    return [
        {
            "index": index,
            "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
            "model": _text(nvml.nvmlDeviceGetName(handle)),
            "memory_mib": nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB,
            "bus": _bus(nvml.nvmlDeviceGetPciInfo(handle)),
            "link": links[index],
        }
        for index, handle in enumerate(handles)
    ]


def _link_groups(nvml: Any, handles: list[Any]) -> list[int]:
    """For each GPU the group of those that NVLink joins, -1 for none: as `nvidia-smi topo -p2p n` finds pairs."""
    group = list(range(len(handles)))
    for one, other in itertools.combinations(range(len(handles)), 2):
        try:
            status = nvml.nvmlDeviceGetP2PStatus(handles[one], handles[other], nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        except nvml.NVMLError:
            continue
        if status == nvml.NVML_P2P_STATUS_OK:
            group = [group[one] if its == group[other] else its for its in group]
    names = {its: number for number, its in enumerate(sorted({its for its in group if group.count(its) > 1}))}
    return [names.get(its, -1) for its in group]


def _bus(pci: Any) -> str:
    """As sysfs names the device."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    sys.exit(main())
