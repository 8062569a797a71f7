"""A real Prometheus: Debian's where it is installed, else built once from its Go module."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.binaries import cached, go_build
from tests.controlplane.processes import Process, answers, free_port, retry_taken_port, start_process

_MODULE = Path(__file__).parent / "go"
_VERSION = "v0.305.0"
"""The Go module's number of Prometheus 3.5, as in go/go.mod."""


def find_prometheus() -> Path:
    """The executable. Raises BuildError."""
    return _find("prometheus")


def find_promtool() -> Path:
    """Its tool for rules. Raises BuildError."""
    return _find("promtool")


def _find(name: str) -> Path:
    installed = shutil.which(name)
    return Path(installed) if installed else cached(f"{name}-{_VERSION}", partial(_build, name)) / name


def _build(name: str, into: Path) -> None:
    # Without the tag `builtinassets`: no pages for people, whose assets the Go module does not carry.
    go_build(_MODULE, into, [f"github.com/prometheus/prometheus/cmd/{name}"])


@dataclass(frozen=True)
class Job:
    """Something to scrape."""

    name: str
    url: str
    """host:port/path"""
    honor_labels: bool = False
    labels: Mapping[str, str] | None = None
    """Of the target, as service discovery gives them."""


def configuration(
    jobs: Sequence[Job],
    interval: str = "1s",
    rules: Sequence[Path] = (),
    written: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """A prometheus.yml; `written` are scrape configurations as they stand somewhere."""
    scrapes: list[Mapping[str, Any]] = [*written]
    for job in jobs:
        address, _, path = job.url.partition("/")
        scrapes.append(
            {
                "job_name": job.name,
                "metrics_path": f"/{path}",
                "honor_labels": job.honor_labels,
                "static_configs": [{"targets": [address], "labels": dict(job.labels or {})}],
            }
        )
    times = {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval}
    return {"global": times, "scrape_configs": scrapes, "rule_files": [str(path) for path in rules]}


@contextlib.contextmanager
def prometheus(
    folder: Path,
    jobs: Sequence[Job],
    interval: str = "1s",
    rules: Sequence[Path] = (),
    niceness: int = 0,
    flags: Sequence[str] = (),
    host: str = "127.0.0.1",
    written: Sequence[Mapping[str, Any]] = (),
) -> Iterator[Process]:
    """A running Prometheus, on loopback, that scrapes the jobs and evaluates rules; its data go with the folder."""
    executable = find_prometheus()
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(configuration(jobs, interval, rules, written)))

    def start() -> Process:
        port = free_port()
        url = f"http://{host}:{port}"
        command = [
            *("nice", "-n", str(niceness)),
            str(executable),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={host}:{port}",
            "--web.enable-lifecycle",
            "--query.max-samples=100000000",
            *flags,
        ]
        process = start_process("prometheus", command, folder / "prometheus.log", url)
        try:
            process.wait_ready(lambda: answers(f"{url}/-/ready"))
        except BaseException:
            process.stop()
            raise
        return process

    process = retry_taken_port(start)
    try:
        yield process
    finally:
        process.stop(grace_s=5.0)


def backfill(folder: Path, metrics: str) -> None:
    """Samples of the past, in OpenMetrics' text, for a Prometheus that is to run in the folder."""
    text = folder / "metrics.txt"
    text.write_text(metrics)
    # By default in blocks of two hours, and the text is read once for each of them.
    tool = [str(find_promtool()), "tsdb", "create-blocks-from", "--max-block-duration=62d"]
    done = subprocess.run(
        [*tool, "openmetrics", "-q", text, folder / "data"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    text.unlink()
