"""Kerf's processes that are forked are processes as any others, with clocks that are told what to say."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane import free_port, wait_until
from tests.controlplane.processes import answers
from tests.tools.chaos import clocks
from tests.tools.chaos.clocks import MissedTime, MonotonicClock, WallClock
from tests.tools.chaos.zygotes import Zygote

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    started = Zygote({"PATH": "/usr/bin:/bin"})
    started.start()
    yield started
    started.stop()


@pytest.mark.parametrize("stoppable", [False, True])
def test_a_replica_serves_can_be_stopped_and_is_gone_after_kill_9(
    zygote: Zygote, tmp_path: Path, stoppable: bool
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    replica = zygote.replica(["demo", "--port", str(port)], url, tmp_path / "kerf.log", stoppable=stoppable)
    wait_until(lambda: answers(f"{url}/healthz"), 60.0, "it serves")
    replica.signal(signal.SIGSTOP)
    replica.missed.add(2.0)
    assert replica.running
    assert not answers(f"{url}/healthz")
    replica.signal(signal.SIGCONT)
    wait_until(lambda: answers(f"{url}/healthz"), 60.0, "it goes on")
    replica.kill()
    assert not replica.running
    replica.signal(signal.SIGCONT)  # to nobody


def test_a_replica_that_ends_says_why(zygote: Zygote, tmp_path: Path) -> None:
    log = tmp_path / "kerf.log"
    replica = zygote.replica(["serve", "--set", "no.such=1"], "", log)
    wait_until(lambda: not replica.running, 60.0, "it ends")
    assert "no such setting" in log.read_text()


def test_what_is_missed_is_shared_and_left_out(tmp_path: Path) -> None:
    mine, theirs = MissedTime(tmp_path / "page"), MissedTime(tmp_path / "page")
    clock = MonotonicClock()
    clock.missed = theirs
    assert abs(clock() - time.monotonic()) < 1.0
    mine.add(100.0)
    mine.add(50.0)
    assert abs(time.monotonic() - clock() - 150.0) < 1.0


def test_the_wall_clock_jumps_forth_and_back() -> None:
    clock = WallClock()
    clock.jump(0, None)
    assert abs(clock() - time.time() - 3600.0) < 1.0
    clock.jump(0, None)
    assert abs(clock() - time.time()) < 1.0
    assert clocks.wall is not clock
