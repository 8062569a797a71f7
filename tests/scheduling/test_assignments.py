"""An assignment in words, as its event has it."""

import pytest

from extender.scheduling.assignments import Assignment


def assignment(*devices: str, gpus: tuple[int, ...] = ()) -> Assignment:
    return Assignment("n", 2, gpus, (), 1000, (), (), "h100", "2 GPUs", "kerf", False, 3, 9, devices)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (assignment(gpus=(0, 3)), "Assigned GPUs 0,3 (h100) on node n by policy kerf"),
        (assignment("gpu-0", "gpu-1"), "Allocated gpu-0, gpu-1 on node n by policy kerf"),
        (assignment(*("d",) * 8), f"Allocated {', '.join('d' * 8)} on node n by policy kerf"),
        (assignment(*("d",) * 11), f"Allocated {', '.join('d' * 8)} and 3 more on node n by policy kerf"),
    ],
)
def test_it_names_the_node_and_no_more_devices_than_a_line_holds(made: Assignment, words: str) -> None:
    assert str(made) == words
