"""GPU-hours of two replicas on a real control plane, scraped by a real Prometheus: each second counts once."""

import signal
import time
from functools import partial
from pathlib import Path

import pytest
import urllib3

from tests.controlplane.objects import gpu_node
from tests.controlplane.processes import Process, wait_until
from tests.e2e.fixtures import Clusters
from tests.e2e.test_high_availability import PATIENT, WITHIN_S, service_mode
from tests.telemetry.prometheuses import Job, prometheus

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane, pytest.mark.slow]

NUM_GPUS = 2
BEGINS_S = 60.0
"""For so long a new series is 0."""
OFF_S = 6.0
"""One look, one scrape, two renewals, and a busy machine."""
QUERY = "sum(increase(kerf_booked_gpu_seconds_total[15m]))"


def value(running: Process, query: str) -> float:
    """Of an instant query; 0 for none."""
    told = urllib3.request("GET", f"{running.url}/api/v1/query", fields={"query": query}).json()["data"]["result"]
    return float(told[0]["value"][1]) if told else 0.0


def test_a_fail_over_counts_each_second_once(clusters: Clusters, tmp_path: Path) -> None:
    with service_mode(clusters, *PATIENT, "--set", "usage.every_s=1") as replicas:
        leader = replicas.leader()
        successor = replicas.other(leader)
        jobs = [Job("kerf", f"127.0.0.1:{kerf.port}/metrics") for kerf in replicas.replicas]
        jobs = [Job(f"kerf-{number}", job.url) for number, job in enumerate(jobs)]
        with prometheus(tmp_path, jobs) as running:
            replicas.cluster.add_nodes(gpu_node("node", gpus=4))
            wait_until(partial(value, running, "count(kerf_capacity_gpu_seconds_total)"), WITHIN_S, "a series of it")
            replicas.cluster.submit("held", NUM_GPUS)
            replicas.cluster.bound("held")
            began = time.monotonic()
            least = NUM_GPUS * BEGINS_S
            wait_until(lambda: value(running, QUERY) > least, 3 * BEGINS_S, "the series has begun", interval_s=1.0)
            leader.process.signal(signal.SIGKILL)
            wait_until(lambda: replicas.leader() is successor, WITHIN_S, "the other leads")
            time.sleep(BEGINS_S + 5.0)
            counted, passed = value(running, QUERY), time.monotonic() - began
    assert counted <= NUM_GPUS * (passed + 2.0)
    assert counted >= NUM_GPUS * (passed - OFF_S)
