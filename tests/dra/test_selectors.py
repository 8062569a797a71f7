import sys

import pytest

from extender.core.dra.asks import SelectorFault
from extender.core.dra.devices import Device, DeviceId
from extender.dra.asks import UnhandledError, _compile_selector
from extender.dra.cel.compiling import Programs
from extender.dra.cel.parsing import RefusedError
from tests.dra.builders import core_device
from tests.dra.expressions import ANSWERS, DEVICES, DRIVER
from tests.spending import at_most

SEEN = [core_device(DRIVER, published) for published in DEVICES]
NOT_HANDLED = {
    "device.capacity.all(d, device.capacity[d].all(n, "
    "device.capacity[d][n].compareTo(quantity('0')) >= 0))": "CEL: cost",
    "1u == 1u": "CEL: uint",
    "b'a' == b'a'": "CEL: bytes",
    "'''a''' == 'a'": "CEL: triple quotes",
    "duration('1s') == duration('1s')": "CEL: function duration",
    "'%d'.format([1]) == '1'": "CEL: function format",
    "type(1) == int": "CEL: function type",
    "sets.contains(['gpu', 'mig'], ['gpu'])": "CEL: names",
    "[1, 2].sum() == 3": "CEL: function sum",
    "quantity('40Gi') == quantity('39Gi').add(quantity('1Gi'))": "CEL: types",
    "quantity('39Gi').add(quantity('1Gi')) == quantity('40Gi')": "CEL: types",
    f"device.attributes['{DRIVER}'].index in [1.0, 3.0]": "CEL: types",
}


def answer(expression: str, device: Device) -> bool | str:
    """A selector's result for a device."""
    try:
        return _compile_selector(expression).matches(device)
    except SelectorFault:
        return "fault"


def answers_of(expression: str) -> list[bool | str] | str:
    """A selector's results for all devices, or the kind of what is not handled."""
    try:
        _compile_selector(expression)
    except UnhandledError as error:
        return error.kind
    return [answer(expression, device) for device in SEEN]


def test_selectors_answer_as_kube_scheduler_does() -> None:
    for row in ANSWERS:
        expression, answers = row["expression"], row["answers"]
        kind, found = NOT_HANDLED.get(expression), answers_of(expression)
        if answers == "refused" or kind:
            assert isinstance(found, str), expression
            assert found.startswith(kind or "CEL: "), expression
        else:
            assert found == answers, expression


A = f"device.attributes['{DRIVER}']"


def test_the_fields_that_a_selector_reads_are_known() -> None:
    cases: list[tuple[str, set[str] | None]] = [
        ("true", set()),
        (f"{A}['type'] == 'gpu' && device.driver == 'x'", {f"{DRIVER}/type", "driver"}),
        (f"has({A}.a) || {A}.?b.orValue(true) || 'c' in {A}", {f"{DRIVER}/{name}" for name in "abc"}),
        (f"cel.bind(x, {A}, x.a == x.b)", {f"{DRIVER}/a", f"{DRIVER}/b"}),
        (f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('1'))", {f"{DRIVER}/memory"}),
        ("device.allowMultipleAllocations", {"allowMultipleAllocations"}),
        ("device.attributes.a.b == 1", {"a/b"}),
        (f"{A}.exists(k, k == 'a')", None),
        ("'a' in device.attributes", None),
        ("device.attributes[device.driver].a == 1", None),
        (f"{A}[device.driver] == 1", None),
        ("size(device.capacity) == 0", None),
    ]
    for expression, reads in cases:
        assert _compile_selector(expression).reads == reads


def test_fields_that_a_selector_does_not_read_change_nothing() -> None:
    for row in ANSWERS:
        if row["answers"] == "refused" or row["expression"] in NOT_HANDLED:
            continue
        selector = _compile_selector(row["expression"])
        if selector.reads is None:
            continue
        for seen in SEEN:
            kept = {name: value for name, value in seen.attributes.items() if name in selector.reads}
            names = {name: name if "/" in name else f"{DRIVER}/{name}" for name in seen.capacity}
            capacity = {name: value for name, value in seen.capacity.items() if names[name] in selector.reads}
            driver = DRIVER if "driver" in selector.reads or capacity else "unknown"
            less = Device(DeviceId(driver, "q", "e"), kept, capacity, shareable=seen.shareable)
            assert answer(row["expression"], less) == answer(row["expression"], seen)


def test_equal_texts_are_equal_selectors() -> None:
    assert _compile_selector("1 == 1") == _compile_selector("1 == 1")
    assert _compile_selector("1 == 1") != _compile_selector("1 == 2")


def test_programs_are_kept_in_bounded_memory() -> None:
    programs = Programs(max_chars=40)
    first = programs.of("1 == 1 // first")
    assert programs.of("1 == 1 // first") is first
    programs.of("1 == 1 // second")
    assert programs.of("1 == 1 // first") is first  # used last
    programs.of("1 == 1 // third")
    assert len(programs) == 2
    assert programs.of("1 == 1 // first") is first
    with pytest.raises(RefusedError):
        programs.of("1u == 1u" + " " * 100)
    assert len(programs) == 1
    assert programs.of("1 == 1 // first") is not first


def test_a_deep_stack_makes_no_difference_but_refusal() -> None:
    def deep(levels: int) -> bool | str:
        try:
            return deep(levels - 1) if levels else _compile_selector(nested).matches(SEEN[0])
        except UnhandledError as error:
            return error.kind

    nested = f"{'!(' * 30}true{')' * 30}"
    assert deep(sys.getrecursionlimit() - 300) == "CEL: nesting"
    assert deep(0) is True


LOOP = "[1, 2, 3, 4, 5, 6, 7, 8].all(a, "
HOSTILE = {
    "true" + " || true" * 1270: "",
    "(" * 5000 + "true" + ")" * 5000: "CEL: nesting",
    "[" * 10_000: "CEL: nesting",
    "!" * 10_000 + "true": "",
    "-" * 10_000 + "1 == 1": "CEL: signs",
    "(1 in " * 30 + "[1]" + ")" * 30: "CEL: types",
    "1" + "+1" * 5000 + "==1": "CEL: nesting",
    "device" + ".a" * 5000: "CEL: nesting",
    "true?true:" * 900 + "true": "CEL: nesting",
    LOOP * 5 + "true" + ")" * 5: "CEL: cost",
    LOOP * 3 + "true" + ")" * 3: "",
    f"'{'ab' * 4000}'.split('').all(a, true)": "CEL: cost",
    f"cel.bind(a0, '{'x' * 100}', "
    + "".join(f"cel.bind(a{index + 1}, a{index} + a{index}, " for index in range(30))
    + "a30 == ''"
    + ")" * 31: "CEL: cost",
    f"'{'a' * 300}'.replace('a', '{'b' * 300}').replace('b', '{'c' * 300}') == ''": "CEL: cost",
    "['a'].map(x, x + x)" + ".map(x, x + x)" * 40 + " == []": "CEL: cost",
    f"{A}.type.matches('(((x{{0,30}}){{0,30}}){{0,30}})*y')": "CEL: patterns",
    f"{A}.type.matches('{'(x|y)*' * 40}z')": "",
    f"{A}.type.matches('{'x' * 257}')": "CEL: patterns",
    " || ".join([f"{A}.type.matches('(x*{index}){{9}}(.*y){{9}}$')" for index in range(120)]): "",
    f"{A}.type.matches('\\\\pL')": "CEL: patterns",
    "'" * 10_000: "CEL: triple quotes",
    "r'" + "\\" * 10_000: "CEL: syntax",
    "1" * 10_000 + " == 1": "CEL: syntax",
    "//\n" * 3400 + "true": "",
    f"('{'a' * 4000}b').contains('{'a' * 3000}c')": "CEL: cost",
    " " * 10_241 + "true": "CEL: length",
}


def test_hostile_selectors_take_bounded_time() -> None:
    device = core_device(DRIVER, {"name": "d", "attributes": {"type": {"string": "x" * 64}}})
    for expression, kind in HOSTILE.items():
        found = ""
        with at_most(1.0):  # the worst of these takes 30 ms by itself
            try:
                _compile_selector(expression)
            except UnhandledError as error:
                found = error.kind
            else:
                answer(expression, device)
        assert found == kind, expression[:40]


def test_a_fault_names_the_device_and_the_key() -> None:
    with pytest.raises(SelectorFault, match=r"device bare: .*type"):
        _compile_selector(f"{A}.type == 'gpu'").matches(SEEN[2])


def test_selectors_do_not_take_versions_for_lists() -> None:
    # Both are tuples: a version in the core, a list in the compiler.
    assert answer(f"{A}.driverVersion.size() == 1", SEEN[0]) == "fault"
    assert answer(f"{A}.driverVersion[0] == '550.163.1'", SEEN[0]) == "fault"


def test_conditions_joined_outside_of_brackets_are_parts() -> None:
    device = Device(DeviceId("d", "pool", "x"), {"d/model": "A100", "d/type": "gpu"})
    model, kind = "device.attributes['d'].model == 'A100'", "device.attributes['d'].type == 'mig'"
    cases: list[tuple[str, list[str]]] = [
        (f"{model}\n  && device.driver == 'a && b' && {kind}", [model, "device.driver == 'a && b'", kind]),
        (f"({model} && {kind}) && {kind}", [f"({model} && {kind})", kind]),
        (f"({model} && {kind})", []),
        (model, []),
        (f"{model} && {kind} || {kind}", []),
        (f"{model} && {kind} ? {kind} : {model}", []),
        (f"[1, 2].exists(i, i == 1 && {model})", []),
        (" && ".join([model] * 20), []),  # too many to be of use
    ]
    for expression, parts in cases:
        selector = _compile_selector(expression)
        assert [part.expression for part in selector.parts()] == parts
        if parts:
            assert selector.matches(device) == all(part.matches(device) for part in selector.parts())
