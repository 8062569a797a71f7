"""The conditions that a selector joins, for people who ask which of them fails."""

import pytest

from extender.core.dra.devices import Device, DeviceId
from extender.dra.asks import _compile_selector

DEVICE = Device(DeviceId("d", "pool", "x"), {"d/model": "A100", "d/type": "gpu"})
MODEL = "device.attributes['d'].model == 'A100'"
TYPE = "device.attributes['d'].type == 'mig'"


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        (f"{MODEL} && {TYPE}", [MODEL, TYPE]),
        (f"{MODEL}\n  && device.driver == 'a && b' && {TYPE}", [MODEL, "device.driver == 'a && b'", TYPE]),
        (f"({MODEL} && {TYPE}) && {TYPE}", [f"({MODEL} && {TYPE})", TYPE]),
        (f"({MODEL} && {TYPE})", []),
        (MODEL, []),
        (f"{MODEL} && {TYPE} || {TYPE}", []),
        (f"{MODEL} && {TYPE} ? {TYPE} : {MODEL}", []),
        (f"[1, 2].exists(i, i == 1 && {MODEL})", []),
    ],
)
def test_conditions_joined_outside_of_brackets_are_parts(expression: str, parts: list[str]) -> None:
    selector = _compile_selector(expression)
    assert [part.expression for part in selector.parts()] == parts
    if parts:
        assert selector.matches(DEVICE) == all(part.matches(DEVICE) for part in selector.parts())


def test_of_very_many_conditions_none_is_told_apart() -> None:
    assert _compile_selector(" && ".join([MODEL] * 20)).parts() == ()
