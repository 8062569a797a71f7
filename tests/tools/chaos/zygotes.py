"""Kerf's processes, forked from one that has imported Kerf: a start costs no imports, and is still one of a real
process that can be stopped and killed.

`python -m tests.tools.chaos.zygotes` is that one: it reads orders from standard input, a line of JSON each, and answers
each with a process id. It ends when its input does, and its children end with it.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.tools.chaos import clocks

_PR_SET_PDEATHSIG = 1


class Replica:
    """One process of Kerf, as `tests.controlplane.Process` is one of any command."""

    name = "kerf"

    def __init__(self, pid: int, url: str, log: Path, missed: clocks.MissedTime) -> None:
        self.pid = pid
        self.url = url
        self.log = log
        self.missed = missed
        """What its monotonic clock leaves out."""
        self.killed = False
        """Whether somebody wanted its end."""
        self._descriptor = os.pidfd_open(pid)  # names this process even when its number has gone to another

    def __del__(self) -> None:
        os.close(self._descriptor)

    @property
    def running(self) -> bool:
        return not self._ended(0.0)

    def signal(self, number: int) -> None:
        """Send a signal; to one that has ended, none."""
        self.killed |= number == signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-3:])

    def kill(self) -> None:
        """kill -9, stopped or not; return when it is gone."""
        self.signal(signal.SIGKILL)
        self._ended(None)

    def _ended(self, within_s: float | None) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(None if within_s is None else within_s * 1000))


class Zygote:
    """What Kerf's processes are forked from, from `start` to `stop`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._popen: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Begin to import; the first replica waits for that."""
        command = [sys.executable, "-m", "tests.tools.chaos.zygotes"]
        pipe = subprocess.PIPE
        self._popen = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=self._environment)

    def replica(self, arguments: Sequence[str], url: str, log: Path, *, stoppable: bool = False) -> Replica:
        """Start `kerf` with these arguments; with clocks that can be made to miss time where it is stoppable."""
        if self._popen is None or self._popen.stdin is None or self._popen.stdout is None:
            raise RuntimeError("the zygote is used before start()")
        page = log.with_suffix(".missed")
        missed = clocks.MissedTime(page)
        order = {"arguments": list(arguments), "log": str(log), "page": str(page), "stoppable": stoppable}
        self._popen.stdin.write(json.dumps(order) + "\n")
        self._popen.stdin.flush()
        answer = self._popen.stdout.readline()
        if not answer:
            raise OSError("Kerf could not be imported")
        return Replica(int(answer), url, log, missed)

    def stop(self) -> None:
        """End it, and all replicas."""
        if self._popen is not None:
            self._popen.communicate()  # closes its input
            self._popen = None


def main() -> None:
    """Fork a replica for every order."""
    clocks.install()
    _import_kerf()
    gc.collect()
    gc.freeze()
    own = os.getpid()
    for line in sys.stdin:
        _reap()  # not before: whoever ordered a process has made sure by now that it is the one meant
        pid = os.fork()
        if pid == 0:
            _become_kerf(json.loads(line), own)
        print(pid, flush=True)


def _import_kerf() -> None:
    from extender.cli import settings as cli

    settings = cli.load(None, [], {})
    # What is imported late, and what the first app of a process has to work out.
    importlib_names = ("extender.api.app", "extender.server.run", "extender.cli.logs", "extender.cli.serve", "uvloop")
    for name in importlib_names:
        __import__(name)
    from extender.api.app import create_app

    create_app(settings, cli.api_server(settings.cluster))


def _become_kerf(order: dict[str, Any], parent: int) -> NoReturn:
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        _redirect(order["log"])
        if order["stoppable"]:
            _stop_with_the_clock(order["page"])
        clocks.heed_signals()
        sys.argv = ["kerf", *order["arguments"]]
        from extender.cli import main

        main.main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _stop_with_the_clock(page: str) -> None:
    """Time-outs of the loop, too, go by the clock that misses time: uvloop has one of its own."""
    from uvicorn import config

    clocks.monotonic.missed = clocks.MissedTime(Path(page))
    config.LOOP_FACTORIES["uvloop"] = config.LOOP_FACTORIES["asyncio"]


def _redirect(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main()
