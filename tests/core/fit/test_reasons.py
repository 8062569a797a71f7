"""What checks say of a node, and what would help: sentences in few stable buckets, held in goldens."""

from collections.abc import Iterator

from extender.core.fit.checks import TABLE, nearest_sentence, sentence
from extender.core.fit.reasons import Reason
from extender.core.resources.nodes import LeftOut
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import ONE, pattern
from tests.core.fit.claims import ask, asked
from tests.golden import Golden

TWO = GpuRequest(2, memory_each_mib=40960)
OF_CLAIM = GpuRequest(1, AskedUnit.CLAIM, devices=asked(ask()))
BARE_SHARE = GpuRequest(1, AskedUnit.WHOLE, milli=500)
OTHERS = [
    *((Reason.NO_GPUS, TWO, left_out) for left_out in LeftOut),
    *((Reason.SET_ASIDE, TWO, number) for number in (0, 2)),
    (Reason.NOT_THIS_KIND, GpuRequest(2, AskedUnit.SHARED), 8),
    (Reason.NOT_THIS_KIND, GpuRequest(2, AskedUnit.WHOLE), 8),
    (Reason.NOT_THIS_KIND, BARE_SHARE, 8),
    (Reason.NOT_THIS_KIND, GpuRequest(1, milli=500), 8),
    (Reason.NOT_THIS_KIND, GpuRequest(1, AskedUnit.CLAIM), 8),
    (Reason.NOT_THIS_KIND, GpuRequest(1, AskedUnit.PART, 4096), 8),
    (Reason.NOT_THIS_KIND, ONE, 2**24),
    (Reason.WRONG_MODEL, GpuRequest(1, include=pattern("a100")), 0),
    (Reason.WRONG_UUID, GpuRequest(1, uuids=frozenset({"GPU-b", "GPU-a"})), 0),
    (Reason.TOTAL_TOO_SMALL, GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=81920), 40960),
    (Reason.TOTAL_BUSY, GpuRequest(2, memory_total_mib=81920), 11000),
    (Reason.COMPUTE_BUSY, BARE_SHARE, 300),
    (Reason.MEMORY_BUSY, GpuRequest(2, AskedUnit.WHOLE, 4096, milli=500), 1024),
    (Reason.KEPT_APART, BARE_SHARE, 8),
    (Reason.BUSY, GpuRequest(2, AskedUnit.MIG, mig=(("1g.5gb", 2),)), 1),
]


def test_sentences(golden: Golden) -> None:
    every = [(reason, request, 1) for reason in Reason for request in (TWO, OF_CLAIM) if reason is not Reason.NO_GPUS]
    lines = [f"{reason.name}: {sentence(reason, request, number)}" for reason, request, number in (*every, *OTHERS)]
    nearest = [nearest_sentence("n1", reason, TWO, 1) for reason in (Reason.BUSY, Reason.SET_ASIDE, Reason.KEPT_APART)]
    golden("core/reasons.txt", [*lines, *nearest])


def remedies() -> Iterator[str]:
    for reason in Reason:
        for request in (TWO, BARE_SHARE) if reason is Reason.KEPT_APART else (TWO,):
            for number in (0, 1) if reason is Reason.NO_GPUS else (1,):
                yield f"{reason.name}, {request}, {number}:"
                for remedy in TABLE[reason].remedies(request, "n1", number):
                    yield f"  {remedy.kind}: {remedy.text} [{remedy.command}]"


def test_remedies(golden: Golden) -> None:
    golden("core/remedies.txt", remedies())


def test_a_remedy_shows_a_printable_name_and_its_command_has_the_exact_one() -> None:
    name = "n" * 100
    (aside,) = TABLE[Reason.SET_ASIDE].remedies(TWO, name, 3)
    first, *_ = TABLE[Reason.KEPT_APART].remedies(TWO, name, 3)
    *_, last = TABLE[Reason.KEPT_APART].remedies(BARE_SHARE, name, 3)
    for remedy in (aside, first, last):
        assert f" {'n' * 77}..." in remedy.text
        assert remedy.command == f"kerf top {name}"
