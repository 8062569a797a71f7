"""Budgets and Jobs are read as each version of Kubernetes writes them."""

import pytest

from extender.kube.decoding import Decoder
from extender.parts.defrag.movable import Budget, Job
from tests.kube import bodies
from tests.kube.test_nulls import reads_what_kubernetes_writes


@pytest.mark.parametrize("minor", bodies.MINORS)
def test_budgets_and_jobs_of_each_version_are_read(minor: str) -> None:
    reads_what_kubernetes_writes(minor, "PodDisruptionBudget", [Decoder(Budget).decode])
    reads_what_kubernetes_writes(minor, "Job", [Decoder(Job).decode])
