"""What would help where a check fails: a sentence each, and the command that does it or tells more."""

import numpy as np
import pytest

from extender.core.clusters import Longs
from extender.core.fit.checks import (
    BUILT_IN,
    TABLE,
    Check,
    Missing,
    _another,
    _counted,
    _do,
    _each,
    _found,
    _needs,
    _of_memory,
    _Table,
    _words,
)
from extender.core.fit.device_fits import DeviceFitting, Found
from extender.core.fit.fittings import GpuFitting
from extender.core.fit.reasons import Kind, Reason, Remedy
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import all_rows, cluster_of, node, pattern
from tests.core.fit.claims import ask, asked, gpus, owned

TWO = GpuRequest(2)
ANOTHER = Remedy(Kind.NODES, "add a node with 2 GPUs: no node it may run on has that")
WHY_NONE = Remedy(Kind.NODES, "find out why nodes offer none of their GPUs", "kerf install check")
DESCRIBED = Remedy(
    Kind.NODES,
    "describe the GPUs of n1 with GPU Feature Discovery or the annotation kerf.dev/gpus",
    "kerf install check",
)
LABEL = Remedy(Kind.NODES, "label a node for shares and annotation-only pods, and make those pods select it")
LEAD = Remedy(
    Kind.NODES,
    "turn on the node agent: it steers the device plugin to other GPUs, so that both kinds can share a node "
    "(docs/guides/nvidia-plugin.md)",
)
TOP = "kerf top n1"
HELPS: dict[tuple[Reason, GpuRequest, int], list[Remedy]] = {
    (Reason.NO_GPUS, TWO, 0): [ANOTHER],
    (Reason.NO_GPUS, TWO, 1): [WHY_NONE],
    (Reason.NOT_COUNTED, TWO, 3): [WHY_NONE],
    (Reason.NOT_THIS_KIND, TWO, 8): [ANOTHER],
    (Reason.TOO_FEW_INSTALLED, TWO, 1): [ANOTHER],
    (Reason.UNHEALTHY, TWO, 1): [Remedy(Kind.NODES, "repair the unhealthy GPUs of n1", TOP)],
    (Reason.WRONG_UUID, TWO, 1): [ANOTHER],
    (Reason.WRONG_MODEL, TWO, 1): [ANOTHER],
    (Reason.MODEL_UNKNOWN, TWO, 1): [DESCRIBED],
    (Reason.TOO_SMALL, TWO, 1): [ANOTHER],
    (Reason.TOTAL_TOO_SMALL, TWO, 1): [ANOTHER],
    (Reason.MEMORY_UNKNOWN, TWO, 1): [DESCRIBED],
    (Reason.SET_ASIDE, TWO, 3): [Remedy(Kind.NODES, "find out why pods fail on n1", TOP)],
    (Reason.KEPT_FOR_MOVE, TWO, 3): [Remedy(Kind.WAIT, "wait: room on n1 is reserved for pods being moved")],
    (Reason.KEPT_APART, TWO, 3): [
        Remedy(Kind.WAIT, "wait for annotation-only pods on n1 to end", TOP),
        LABEL,
        LEAD,
    ],
    (Reason.KEPT_APART, GpuRequest(1, AskedUnit.WHOLE, milli=500), 3): [
        LABEL,
        LEAD,
        Remedy(Kind.WAIT, "wait for pods with nvidia.com/gpu on n1 to end", TOP),
    ],
    (Reason.COMPUTE_BUSY, TWO, 3): [],
    (Reason.MEMORY_BUSY, TWO, 3): [],
    (Reason.BUSY, TWO, 1): [Remedy(Kind.NODES, "add a node like n1", "kerf what-if --waiting --add-node auto")],
    (Reason.TOTAL_BUSY, TWO, 3): [],
    (Reason.OCCUPIED, TWO, 1): [
        Remedy(Kind.NODES, "find what uses GPUs of n1 without a booking, or which of them are faulty", TOP)
    ],
    (Reason.FITS, TWO, 1): [],
    (Reason.UNKNOWN_NODE, TWO, 1): [],
}


@pytest.mark.parametrize(
    ("case", "remedies"), HELPS.items(), ids=lambda one: one[0].name if isinstance(one, tuple) else ""
)
def test_what_helps_where_a_check_fails(case: tuple[Reason, GpuRequest, int], remedies: list[Remedy]) -> None:
    reason, request, number = case
    assert list(TABLE[reason].remedies(request, "n1", number)) == remedies


def test_each_reason_is_asked_what_helps() -> None:
    assert {reason for reason, _, _ in HELPS} == set(Reason)


def test_a_nodes_name_is_fit_to_be_shown_and_the_command_has_the_name_itself() -> None:
    (aside,) = TABLE[Reason.SET_ASIDE].remedies(TWO, "n" * 100, 3)
    assert aside == Remedy(Kind.NODES, f"find out why pods fail on {'n' * 77}...", f"kerf top {'n' * 100}")
    first, *_, last = (
        *TABLE[Reason.KEPT_APART].remedies(TWO, "n" * 100, 3),
        *TABLE[Reason.KEPT_APART].remedies(GpuRequest(1, AskedUnit.WHOLE), "n" * 100, 3),
    )
    for one in (first, last):
        assert f"{'n' * 77}... to end" in one.text
        assert one.command == f"kerf top {'n' * 100}"


# A row as the recipe in CONTRIBUTING.md makes it


OF_CLAIM = GpuRequest(1, AskedUnit.CLAIM, devices=asked(ask()))


def test_a_new_row_says_what_is_needed_and_what_is_here() -> None:
    needs, of_claim = "needs 2 GPUs", "needs 1 device by ResourceClaim"
    here = "best here: 1 of one model"
    for says, texts in (
        (_counted("of one model"), [f"{needs}, {here}", f"{of_claim}, {here}"]),
        (_counted("of one model", "no such devices"), [f"{needs}, {here}", f"{of_claim}, no such devices"]),
        (_of_memory("free"), [f"{needs}, best here: 1 MiB free", f"{of_claim}, best here: 1 MiB free"]),
        (_words("it rains"), [f"{needs}, it rains", f"{of_claim}, it rains"]),
        (
            _needs(lambda request, number: f"{request.count} and {number}", "none", joint=";"),
            [f"{needs}; 2 and 1", f"{of_claim}; none"],
        ),
    ):
        table = _Table([*BUILT_IN, Check(reason=64, name="OTHER", says=says)])
        assert [table[64].says(request, 1) for request in (TWO, OF_CLAIM)] == texts


def test_a_new_row_is_called_by_its_reason_unless_it_has_a_name_and_helps_with_what_it_was_given() -> None:
    say = _words("")
    assert Check(reason=Reason.BUSY, says=say).name == "BUSY"
    assert Check(reason=Reason.NOT_COUNTED, name="NO_GPUS", says=say).name == "NO_GPUS"
    plain = Check(reason=64, name="OTHER", says=say)
    assert (plain.relaxed(TWO), list(plain.remedies(TWO, "n1", 1))) == (None, [])
    assert list(_do(Kind.POD, "ask {0} for less")(TWO, "n1", 1)) == [Remedy(Kind.POD, "ask n1 for less", TOP)]
    assert list(_do(Kind.WAIT, "wait for {0}", "kerf {0} wait")(TWO, "n" * 100, 1)) == [
        Remedy(Kind.WAIT, f"wait for {'n' * 77}...", f"kerf {'n' * 100} wait")
    ]
    assert list(_another(TWO, "n1", 1)) == [ANOTHER]


def test_what_is_missing_is_counted_alike_on_all_rows() -> None:
    missing = Missing("GPUs", _each(lambda request: request.count))
    found: Longs = missing.asked(GpuRequest(3), np.zeros((4, 2), np.int32))
    assert found.tolist() == [3, 3, 3, 3]
    assert found.dtype == np.int64


@pytest.mark.parametrize("found", list(Found))
def test_a_row_of_devices_fails_where_the_search_came_to_that(found: Found) -> None:
    cluster = owned({"all": gpus(2), "none": None, "never": gpus(1), "taken": gpus(2, 0)}).snapshot()
    fitting = DeviceFitting(cluster, OF_CLAIM, all_rows(cluster))
    fitting.found = np.array([Found.ALL, Found.NO_DEVICES, Found.UNDECIDED, Found.TAKEN], np.uint8)
    failed, number = _found(found)(fitting)
    assert failed.tolist() == [one == found for one in fitting.found]
    assert number.tolist() == [0] * 4
    assert number.dtype == np.int64


def test_what_is_relaxed_names_all_that_is_given_up() -> None:
    include, exclude = pattern("a100"), pattern("t4")
    of_model, of_uuid = TABLE[Reason.WRONG_MODEL], TABLE[Reason.WRONG_UUID]
    assert of_model.relaxed(TWO) is None
    assert of_uuid.relaxed(TWO) is None
    assert of_model.relaxed(GpuRequest(2, include=include)) == ("any model instead of model a100", TWO)
    assert of_model.relaxed(GpuRequest(2, exclude=exclude)) == ("any model instead of not model t4", TWO)
    assert of_model.relaxed(GpuRequest(2, include=include, exclude=exclude)) == (
        "any model instead of model a100 and not model t4",
        TWO,
    )
    for request in (GpuRequest(2, uuids=frozenset({"a"})), GpuRequest(2, uuids_exclude=frozenset({"a"}))):
        assert of_uuid.relaxed(request) == ("any GPU instead of the requested UUIDs", TWO)


def test_a_gpu_that_a_row_takes_away_is_in_use_unless_the_row_says_else() -> None:
    cluster = cluster_of({"n": node(("Tesla-T4", 15360))})
    fitting = GpuFitting(cluster, TWO, all_rows(cluster))
    assert Check(reason=64, name="OTHER", says=_words("")).gpu(fitting, 0, 0) == "in use"
