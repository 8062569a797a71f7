"""Which tests of dynamic resource allocation need which Kubernetes."""

from typing import Final

import pytest

from tests.controlplane.binaries import minor

HAS_RULES: Final = minor() >= "1.37"
"""Whether the API server has DeviceTaintRule in `resource.k8s.io/v1`."""
RULES: Final = pytest.mark.skipif(not HAS_RULES, reason="DeviceTaintRule is in resource.k8s.io/v1 since 1.37")
TAINTS: Final = pytest.mark.skipif(minor() < "1.36", reason="taints of devices are on by default since 1.36")
