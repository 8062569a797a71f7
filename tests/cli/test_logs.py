"""What is logged: its form, and rejections once for each set of reasons."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from extender.cli.logs import _Once, configure_logs
from extender.kube.transport import ApiError, ClusterError, UnreachableError
from extender.settings.operation import LogSettings
from tests.api.bodies import node, pod
from tests.api.services import Kerf, running
from tests.kube.test_rights import forbidden

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


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was logged since the last call, without time and level."""
    return [line.partition(" some.where: ")[2] for line in capsys.readouterr().err.splitlines()]


LOGGER = logging.getLogger("some.where")


@pytest.mark.usefixtures("restored")
def test_what_stays_wrong_is_logged_once_and_what_changes_again(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings())
    for wait_s in (0.2, 0.4, 0.8):
        LOGGER.warning("mirror of %s interrupted, retrying in %.1f s: %s", "/nodes", wait_s, "last heard 3 s ago")
    assert lines(capsys) == ["mirror of /nodes interrupted, retrying in 0.2 s: last heard 3 s ago"]
    LOGGER.warning("mirror of %s interrupted, retrying in %.1f s: %s", "/nodes", 1.6, "last heard 26 s ago")
    assert lines(capsys) == []
    LOGGER.warning("mirror of %s interrupted, retrying in %.1f s: %s", "/nodes", 1.6, "410 Gone")
    LOGGER.warning("mirror of %s interrupted, retrying in %.1f s: %s", "/pods", 1.6, "410 Gone")
    assert [line.rpartition(": ")[2] for line in lines(capsys)] == ["410 Gone", "410 Gone"]


@pytest.mark.parametrize(
    "error",
    [forbidden("patch", "pods"), UnreachableError("PATCH {path}: refused"), ApiError(503, "Unavailable", "{path}")],
)
@pytest.mark.usefixtures("restored")
def test_what_is_wrong_with_the_api_server_is_the_same_of_all_pods(
    capsys: pytest.CaptureFixture[str], error: ClusterError
) -> None:
    configure_logs(LogSettings())
    for number in range(100):
        LOGGER.warning("the queue could not release pod %s: %s", f"default/q{number}", error)
    assert len(lines(capsys)) == 1
    LOGGER.warning("the label could not be set: %s", error)
    assert len(lines(capsys)) == 1


@pytest.mark.usefixtures("restored")
def test_what_is_wrong_with_one_pod_is_logged_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings())
    for number in range(3):
        for _ in range(3):
            error = ApiError(422, "Invalid", f"q{number}: immutable")
            LOGGER.warning("the queue could not release pod %s: %s", f"default/q{number}", error)
    assert len(lines(capsys)) == 3


@pytest.mark.usefixtures("restored")
def test_information_is_never_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogSettings())
    for _ in range(3):
        LOGGER.info("bound")
    assert len(lines(capsys)) == 3


def test_a_warning_that_stays_comes_again_after_ever_longer_times_with_how_often_it_came() -> None:
    once, told = _Once(), []
    for second in range(4 * 3600):
        record = logging.LogRecord("a", logging.WARNING, "", 0, "100%% %s", ("broken",), None)
        record.created = float(second)
        if once.filter(record):
            told.append((second, record.getMessage()))
    assert [at for at, _ in told] == [0, 60, 180, 420, 900, 1860, 3780, 7380, 10980]
    assert [words for _, words in told[:2]] == ["100% broken", "100% broken (and 59 times more in the last 1 min)"]


def test_what_has_not_come_for_long_is_new() -> None:
    once = _Once()
    for at in (0.0, 601.0, 602.0):
        record = logging.LogRecord("a", logging.ERROR, "", 0, "broken", (), None)
        record.created = at
        assert once.filter(record) == (at != 602.0)


def test_of_a_thousand_texts_a_bounded_number_is_kept() -> None:
    once = _Once()
    for number in range(5_000):
        assert once.filter(logging.LogRecord("a", logging.WARNING, "", 0, f"text {number}", (), None))
    assert once.filter(logging.LogRecord("a", logging.WARNING, "", 0, "text 0", (), None)), "it is not kept any more"
