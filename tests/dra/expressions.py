"""Selectors written by hand with kube-scheduler's answers, and the devices that they are tried on."""

import json
from pathlib import Path
from typing import Any

DRIVER = "gpu.example.com"

DEVICES: list[dict[str, Any]] = [
    {
        "name": "a100",
        "attributes": {
            "type": {"string": "gpu"},
            "productName": {"string": "NVIDIA A100-SXM4-40GB"},
            "index": {"int": 3},
            "healthy": {"bool": True},
            "driverVersion": {"version": "550.163.1"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:01"},
            "limit": {"string": "10Gi"},
            "number": {"string": "17"},
        },
        "capacity": {"memory": {"value": "40Gi"}, "multiprocessors": {"value": "98"}, "half": {"value": "500m"}},
    },
    {
        "name": "shared",
        "allowMultipleAllocations": True,
        "attributes": {
            f"{DRIVER}/type": {"string": "mig"},
            f"{DRIVER}/index": {"int": -7},
            "healthy": {"bool": False},
            "driverVersion": {"version": "1.2.3-rc.1+build"},
            "odd": {"string": "  Ä\u00a0b,c,,D 'q' "},
            "empty": {"string": ""},
        },
        "capacity": {f"{DRIVER}/memory": {"value": "5368709120"}, "memory.example.com/bytes": {"value": "1500M"}},
    },
    {"name": "bare"},
    {
        "name": "mixed",  # other types under names that others have too
        "attributes": {
            "type": {"int": 1},
            "index": {"string": "3"},
            "productName": {"bool": True},
            "driverVersion": {"string": "1.2.3"},
            "healthy": {"int": 0},
        },
        "capacity": {"memory": {"value": "0"}},
    },
]

ANSWERS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("answers.json").read_bytes())
"""Expressions, with kube-scheduler's answer for each device, or "refused"; test_yardstick.py checks them."""
