"""What is logged: its form, and rejections once for each set of reasons."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from extender.cli.logs import configure_logs
from extender.settings.operation import LogSettings
from tests.api.bodies import node, pod
from tests.api.services import Kerf, running

REJECTIONS = "extender.explain.explanations"


@pytest.fixture
def restored() -> Iterator[None]:
    """The root logger as it was: configure_logs is for whole processes."""
    root, noisy = logging.getLogger(), [logging.getLogger(name) for name in ("uvicorn.error", "aiohttp.client")]
    asyncio_logger = logging.getLogger("asyncio")
    before = root.level, root.handlers[:], [logger.level for logger in (*noisy, asyncio_logger)]
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    for logger, level in zip((*noisy, asyncio_logger), before[2], strict=True):
        logger.setLevel(level)


def rejections(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines about pods that fit nowhere, so far; forgets them."""
    lines = [record.getMessage() for record in caplog.records if record.name == REJECTIONS]
    caplog.clear()
    return lines


@pytest.mark.usefixtures("restored")
def test_json_logs_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(format="json"))
    logger = logging.getLogger("some.where")
    logger.info("two\nlines of %s", "ё\0")
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("it failed")
    logger.debug("not at this level")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("info", "some.where", "two\nlines of ё\0")
    assert first["time"].endswith("+00:00")
    assert (second["level"], second["message"]) == ("error", "it failed")
    assert "ValueError: broken" in second["exception"]


@pytest.mark.usefixtures("restored")
def test_text_logs(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(level="warning"))
    logging.getLogger("some.where").info("not at this level")
    logging.getLogger("some.where").warning("attention")
    assert capsys.readouterr().err.endswith(" WARNING some.where: attention\n")


@pytest.mark.usefixtures("restored")
def test_what_an_author_writes_begins_no_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings(level="warning"))
    logger = logging.getLogger("some.where")
    logger.warning("pod a/b: %s", "x\n2026-01-01 00:00:00,000 WARNING kerf: forged\r\u2028\x1b[2J\u202e\x85")
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("it\nfailed")
    first, second, *trace = capsys.readouterr().err.splitlines()
    assert first.endswith(r"a/b: x\n2026-01-01 00:00:00,000 WARNING kerf: forged\r\u2028\x1b[2J\u202e\x85")
    assert second.endswith(r"ERROR   some.where: it\nfailed")
    assert trace[-1] == "ValueError: broken"


def test_a_rejection_is_logged_once_for_each_set_of_reasons(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    held = pod("held", 1, node_name="n-0")
    with running([node("n-0", 2), node("n-1", 1), node("cpu-0"), held]) as kerf:
        asking = pod("asking", 2)
        kerf.filter(asking, ["n-0", "n-1", "cpu-0", "x"])
        (line,) = rejections(caplog)
        assert line.startswith("pod default/asking fits on no node: ")
        # Node, what is required, what is available.
        assert "n-0: needs 2 GPUs, best here: 1 free" in line
        assert "n-1: needs 2 GPUs, best here: 1 installed" in line
        assert "cpu-0: needs 2 GPUs, no GPUs here" in line
        assert "x: node not known to Kerf yet" in line

        for _ in range(3):
            kerf.filter(asking, ["n-0", "n-1", "cpu-0", "x"])
        assert rejections(caplog) == []
        kerf.filter(pod("another", 2), ["n-0"])
        assert rejections(caplog) == [
            "pod default/another fits on no node: 1 x needs 2 GPUs, best here: 1 free "
            "[n-0: needs 2 GPUs, best here: 1 free]"
        ]
        kerf.filter(pod("small", 1), ["n-0"])  # takes the GPU that was free
        kerf.filter(asking, ["n-0", "n-1", "cpu-0", "x"])
        (line,) = rejections(caplog)
        assert "n-0: needs 2 GPUs, best here: 0 free" in line


def test_a_long_rejection_says_where_the_rest_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    names = [f"cpu-{number}" for number in range(25)]
    with running(map(node, names)) as kerf:
        kerf.filter(pod("asking", 1), names)
    (line,) = rejections(caplog)
    assert line.startswith("pod default/asking fits on no node: 25 x needs 1 GPU, no GPUs here [cpu-0: ")
    assert line.endswith("cpu-19: needs 1 GPU, no GPUs here, and 5 more (GET /explain/pod/default/asking)]")


@pytest.mark.parametrize("manifest", [pod("fits", 1), pod("plain")], ids=["placed", "without GPUs"])
def test_what_fits_is_no_rejection(kerf: Kerf, caplog: pytest.LogCaptureFixture, manifest: Any) -> None:
    caplog.set_level(logging.INFO)
    kerf.filter(manifest, ["t4-0"])
    assert rejections(caplog) == []


def test_a_failed_bind_is_logged(kerf: Kerf, caplog: pytest.LogCaptureFixture) -> None:
    kerf.bind(pod("nobody", 1), "t4-0")
    assert 'bind: pod default/nobody: 404 NotFound: pods "nobody" not found' in caplog.text
