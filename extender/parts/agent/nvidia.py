"""Prints the GPUs that NVIDIA's library (NVML) reports as JSON: `python -m extender.parts.agent.nvidia`.

Runs in a separate process, so that the agent keeps none of the library's memory and survives if the driver hangs or
crashes.
"""

import itertools
import json
import sys
from typing import Any

_MIB = 2**20
COMMAND = (sys.executable, "-m", __name__)
"""Command that runs this module."""
INFORMATION = "proc/driver/nvidia/gpus/*/information"
"""Glob of the driver's files below the root, one for each GPU, which sort in the driver's order (by bus address). The
UUID is all question marks there until a GPU has been opened."""


def main() -> int:
    """Print the GPUs; 1 and an error on standard error if the library fails."""
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
    """Number of each GPU's NVLink group, -1 for none; pairs are found as by `nvidia-smi topo -p2p n`."""
    group = list(range(len(handles)))
    for one, other in itertools.combinations(range(len(handles)), 2):
        try:
            status = nvml.nvmlDeviceGetP2PStatus(handles[one], handles[other], nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        except nvml.NVMLError:
            continue
        if status == nvml.NVML_P2P_STATUS_OK:
            group = [group[one] if old == group[other] else old for old in group]
    number_of = {old: number for number, old in enumerate(sorted({old for old in group if group.count(old) > 1}))}
    return [number_of.get(old, -1) for old in group]


def _bus(pci: Any) -> str:
    """The device's name in sysfs."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    sys.exit(main())
