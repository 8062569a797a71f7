"""What is read of budgets and Jobs, as each Kubernetes writes them."""

import pytest

from extender.kube.decoding import Decoder
from extender.parts.defrag.movable import Budget, Job
from tests.kube import bodies
from tests.kube.test_nulls import reads_what_kubernetes_writes


@pytest.mark.parametrize("minor", bodies.MINORS)
def test_what_each_kubernetes_writes_is_read(minor: str) -> None:
    reads_what_kubernetes_writes(minor, "PodDisruptionBudget", [Decoder(Budget).decode])
    reads_what_kubernetes_writes(minor, "Job", [Decoder(Job).decode])
