"""Selectors for tests: written by hand, and made up, with the devices that they are tried on."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

DRIVER = "gpu.example.com"

DEVICES: list[dict[str, Any]] = [
    {
        "name": "a100",
        "attributes": {
            "type": {"string": "gpu"},
            "productName": {"string": "NVIDIA A100-SXM4-40GB"},
            "index": {"int": 3},
            "healthy": {"bool": True},
            "driverVersion": {"version": "550.163.1"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:01"},
            "limit": {"string": "10Gi"},
            "number": {"string": "17"},
        },
        "capacity": {"memory": {"value": "40Gi"}, "multiprocessors": {"value": "98"}, "half": {"value": "500m"}},
    },
    {
        "name": "shared",
        "allowMultipleAllocations": True,
        "attributes": {
            f"{DRIVER}/type": {"string": "mig"},
            f"{DRIVER}/index": {"int": -7},
            "healthy": {"bool": False},
            "driverVersion": {"version": "1.2.3-rc.1+build"},
            "odd": {"string": "  Ä\u00a0b,c,,D 'q' "},
            "empty": {"string": ""},
        },
        "capacity": {f"{DRIVER}/memory": {"value": "5368709120"}, "memory.example.com/bytes": {"value": "1500M"}},
    },
    {"name": "bare"},
    {
        "name": "mixed",  # other types under names that others have too
        "attributes": {
            "type": {"int": 1},
            "index": {"string": "3"},
            "productName": {"bool": True},
            "driverVersion": {"string": "1.2.3"},
            "healthy": {"int": 0},
        },
        "capacity": {"memory": {"value": "0"}},
    },
]

_A = f"device.attributes['{DRIVER}']"
_C = f"device.capacity['{DRIVER}']"

BY_HAND = [
    # What the world writes
    f"device.driver == '{DRIVER}'",
    f"{_A}.type == 'gpu'",
    f"device.driver == '{DRIVER}' && {_A}.type == 'gpu'",
    f"{_A}.productName.lowerAscii().matches('^.*a100.*$')",
    f"{_A}.productName in ['Tesla T4', 'NVIDIA A100-SXM4-40GB']",
    f"{_C}.memory.compareTo(quantity('40Gi')) >= 0",
    f"{_C}.memory.isGreaterThan(quantity('10Gi'))",
    f"{_A}.driverVersion.isGreaterThan(semver('535.0.0'))",
    f"{_A}.driverVersion.compareTo(semver('550.163.1')) == 0",
    f"semver({_A}.driverVersion).major() > 0",
    f"cel.bind(a, {_A}, a.type == 'gpu' && a.index == 3)",
    f"has({_A}.type) && {_A}.type == 'mig'",
    f"'type' in {_A}",
    f"'{DRIVER}' in device.attributes",
    "'nobody' in device.attributes",
    "device.attributes['nobody'].type == 'x'",
    "has(device.attributes['nobody'].type)",
    "size(device.attributes['nobody']) == 0",
    "device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:01'",
    "device.allowMultipleAllocations",
    "device.allowMultipleAllocations == true",
    f"{_A}.?type.orValue('none') == 'none'",
    f"{_A}[?'type'].orValue('none') == 'gpu'",
    f"{_A}.?index.orValue(3) == 3",
    f"{_A}.?type.hasValue()",
    f"{_A}.?type.optMap(t, t == 'gpu').orValue(false)",
    f"{_A}.?type.or({_A}.?index).value() == 'mig'",
    f"{_A}.?type.value() == 'gpu'",
    f"{_A}.?nothing.value() == 'gpu'",
    "optional.of(1).orValue(2) == 1",
    "optional.none().orValue(2) == 2",
    f"device.capacity['memory.example.com'].bytes == quantity('1500M')",
    f"{_C}.memory == quantity('5Gi')",
    f"{_C}.memory == {_A}.type",
    f"{_A}.type == {_C}.memory",
    f"{_C}.half.isInteger()",
    f"{_C}.memory.asInteger() == 42949672960",
    f"{_C}.half.asInteger() == 0",
    f"sign({_C}.half) == 1",
    f"{_C}.memory.add(quantity('1Gi')).isGreaterThan(quantity('40Gi'))",
    f"{_C}.memory.sub(1).isLessThan(quantity('40Gi'))",
    f"{_C}.multiprocessors.sub(quantity('100')).isLessThan(quantity('0'))",
    f"quantity({_A}.limit).compareTo(quantity('10Gi')) == 0",
    f"isQuantity({_A}.type)",
    f"isQuantity({_A}.productName) || isQuantity({_A}.limit)",
    f"isSemver({_A}.type)",
    f"isSemver('v1.2', true)",
    "semver('v01.2', true) == semver('1.2.0')",
    "semver('1.0.0-alpha.1').isLessThan(semver('1.0.0-alpha.beta'))",
    "semver('1.0.0-2').isLessThan(semver('1.0.0-11'))",
    "semver('1.0.0+a') == semver('1.0.0+b')",
    "semver('1.0.0-rc') == semver('1.0.0')",
    "semver('01.0.0') == semver('1.0.0')",
    "semver('18446744073709551615.0.0').major() == -1",
    # Errors and what puts up with them
    f"{_A}.nothing == 1 || true",
    f"true || {_A}.nothing == 1",
    f"{_A}.nothing == 1 && false",
    f"{_A}.nothing == 1 || false",
    f"{_A}.type || true",
    f"{_A}.healthy && true",
    f"!{_A}.healthy",
    f"{_A}.healthy ? true : {_A}.nothing",
    f"{_A}.healthy",
    f"{_A}.type",
    f"{_A}.index > 2",
    f"{_A}.type > 'a'",
    f"{_A}.healthy < true",
    f"{_A}.index < {_A}.type",
    f"{_A}.index + 1 == 4",
    f"{_A}.type + 'x' == 'gpux'",
    f"{_A}.index / 0 == 1",
    f"{_A}.index % 2 == -1",
    f"{_A}.index / 2 == -3",
    f"-{_A}.index == 7",
    "9223372036854775807 + 1 > 0",
    "-9223372036854775808 < 0",
    "-9223372036854775808 / -1 > 0",
    "-(-9223372036854775808) > 0",
    "9223372036854775807 * 2 > 0",
    "1 == 1",
    "dyn(1) == dyn(1.0)",
    "dyn(1) == 1.5",
    "1 < 1.5",
    "dyn(9007199254740993) == 9007199254740992.0",
    "dyn(true) == 1",
    f"{_A}.healthy == 1",
    f"{_A}.healthy == true",
    f"{_A}.type == null",
    "dyn(null) == null",
    f"{_A}.type.x == 1",
    f"has({_A}.type.x)",
    f"{_A}.type[0] == 'g'",
    f"{_A}.driverVersion in ['550.163.1']",
    f"{_A}.driverVersion in ['550.163.1'] || true",
    f"{_A}.index in [1, 2, 3]",
    f"{_A}.index in [1.0, 3.0]",
    f"{_A}.type in {_A}.productName",
    f"'gpu' in [{_A}.type]",
    "'a' in {'a': 1}",
    f"{{'gpu': 40, 'mig': 5}}[{_A}.type] > 10",
    "{'a': 1}.a == 1",
    "{'a': 1}['b'] == 1",
    "{'a': 1}[?'b'].orValue(2) == 2",
    "[1, 2, 3][1] == 2",
    "[1, 2, 3][3] == 2",
    "[1, 2] + [3] == [1, 2, 3]",
    "[1, 2] == [1]",
    "[] == []",
    # Texts
    f"{_A}.productName.contains('A100')",
    f"{_A}.productName.startsWith('NVIDIA')",
    f"{_A}.productName.endsWith('40GB')",
    f"{_A}.productName.split(' ')[1].startsWith('A100')",
    f"{_A}.productName.split('-', 2).size() == 2",
    f"{_A}.productName.replace('-', '_') == 'NVIDIA A100_SXM4_40GB'",
    f"{_A}.productName.substring(7, 11) == 'A100'",
    f"{_A}.productName.substring(70) == 'A100'",
    f"{_A}.productName.indexOf('A100') == 7",
    f"{_A}.productName.lastIndexOf('-') == 16",
    f"{_A}.productName.charAt(0) == 'N'",
    f"{_A}.odd.trim() == \"Ä\u00a0b,c,,D 'q'\"",
    f"{_A}.odd.upperAscii().contains('B,C')",
    f"{_A}.odd.size() == 16",
    f"size({_A}.odd) > 10",
    f"{_A}.empty.split('') == []",
    "''.split(',') == ['']",
    "'abc'.split('') == ['a', 'b', 'c']",
    "'abc'.split('', 2) == ['a', 'bc']",
    "'a,b,c'.split(',', 0) == []",
    "'abc'.replace('', '-') == '-a-b-c-'",
    "'abc'.lastIndexOf('') == 3",
    "''.lastIndexOf('a') == -1",
    "'abc'.indexOf('', 7) == 3",
    "'abcabc'.lastIndexOf('c', 3) == 2",
    "['a', 'b'].join('-') == 'a-b'",
    "'tacocat'.charAt(7) == ''",
    f"int({_A}.number) == 17",
    "int('+5') == 5",
    "int('5_0') == 50",
    "int(' 5') == 5",
    "int(2.9) == 2",
    "string(true) == 'true'",
    f"string({_A}.index) == '3'",
    "bool('t')",
    "bool('yes')",
    r"'\u0041\x42\103\U00000044' == 'ABCD'",
    r"r'\d' == '\\d'",
    r"'a.c'.matches(r'a\.c')",
    "'abc'.matches('^b')",
    "matches('abc', 'b')",
    "'a\\nb'.matches('a$')",
    "'a\\nb'.matches('(?m)a$')",
    f"{_A}.index.matches('3')",
    # Macros
    "[1, 2, 3].exists(x, x > 2)",
    "[1, 2, 3].all(x, x > 2)",
    "[1, 2, 3].exists_one(x, x > 2)",
    "[1, 2, 3].filter(x, x > 1) == [2, 3]",
    "[1, 2, 3].map(x, x * 2) == [2, 4, 6]",
    "[1, 2, 3].map(x, x > 1, x * 2) == [4, 6]",
    "[1, 0].exists(x, 1 / x == 1)",
    "[0, 1].exists(x, 1 / x == 1)",
    "[0, 1].all(x, 1 / x == 2)",
    "[0, 1].exists_one(x, 1 / x == 1)",
    f"['gpu', 'mig'].exists(t, {_A}.type == t)",
    f"{_A}.exists(k, k == 'type')",
    f"{_A}.all(k, k != 'type')",
    "device.attributes.exists(d, d.startsWith('gpu'))",
    "device.capacity.exists(d, has(device.capacity[d].memory))",
    "device.capacity.all(d, device.capacity[d].all(n, device.capacity[d][n].compareTo(quantity('0')) >= 0))",
    "cel.bind(x, 1 / 0, true)",
    "cel.bind(x, 1 / 0, x == 1)",
    "cel.bind(x, 1, cel.bind(x, x + 1, x == 2))",
    f"cel.bind(d, device, d.driver == '{DRIVER}')",
    f"cel.bind(m, {_C}.memory, m == quantity('40Gi') || m == quantity('5Gi'))",
    # Refused by both, or by Kerf alone
    "device.driver == 1",
    "device.nothing == 1",
    "nothing == 1",
    "1 + 'a' == 1",
    "1 ? true : false",
    "'a' < 1",
    "device.driver",
    "1",
    "[1, 'a'].size() == 2",
    "1u == 1u",
    "b'a' == b'a'",
    "'''a''' == 'a'",
    "duration('1s') == duration('1s')",
    "'%d'.format([1]) == '1'",
    "'a'.matches('(')",
    "'\\q' == 'q'",
    "type(1) == int",
    "a.b(",
    "",
    "sets.contains(['gpu', 'mig'], ['gpu'])",
    "[1, 2].sum() == 3",
    "quantity('40Gi') == quantity('39Gi').add(quantity('1Gi'))",
    "quantity('39Gi').add(quantity('1Gi')) == quantity('40Gi')",
    "has(device.attributes['gpu.example.com'])",
    "has(device.driver)",
    "has(device.attributes.nothing)",
    "device.attributes.nothing.x == 1",
]


# Made up


class Author:
    """Writes selectors of all kinds that make sense to CEL, and some that do not."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = 0

    def selector(self) -> str:
        """An expression."""
        return self.bool(self._random.choice((1, 2, 2, 3, 3, 4)), ())

    def device(self) -> dict[str, Any]:
        """A device to try them on, in whichever way it is named."""
        pick = self._random.choice
        values: list[dict[str, Any]] = [
            *({"string": text} for text in ("gpu", "mig", "", "GPU", "10Gi", "1.2.3", "A100 40GB", "-3", "true")),
            *({"int": number} for number in (0, 1, -1, 7, 2**63 - 1, -(2**63))),
            *({"bool": truth} for truth in (True, False)),
            *({"version": text} for text in ("1.2.3", "0.0.1", "1.2.3-rc.1", "1.2.3-rc.2+b", "550.163.1")),
        ]
        names = [f"{pick(('', '', DRIVER + '/', 'other.example.com/'))}{name}" for name in _NAMES]
        attributes = {name: pick(values) for name in names if self._random.random() < 0.8}
        amounts = ("0", "1", "40Gi", "500m", "1500M", "98", "9223372036854775807", "1536Mi", "10k")
        capacity = {
            f"{pick(('', DRIVER + '/'))}{name}": {"value": pick(amounts)}
            for name in _CAPACITIES
            if self._random.random() < 0.8
        }
        shareable = {"allowMultipleAllocations": True} if self._random.random() < 0.3 else {}
        return {"name": "d", "attributes": attributes, "capacity": capacity, **shareable}

    # By type: each of a depth at most, with the variables that there are, by name and type

    def bool(self, depth: int, names: Sequence[tuple[str, str]]) -> str:
        make, pick = self._of(depth, names), self._random.choice
        if depth <= 0:
            return pick(
                (*_named(names, "bool"), "true", "false", "device.allowMultipleAllocations", f"has({make.attribute()})")
            )
        kind = pick(("int", "string", "string", "dyn", "quantity", "semver"))
        one, other = make(kind), make(kind)
        kind_of_list = pick(("int", "string"))
        return pick(
            (
                lambda: f"{make('bool')} && {make('bool')}",
                lambda: f"({make('bool')} || {make('bool')})",
                lambda: f"!({make('bool')})",
                lambda: f"({make('bool')} ? {make('bool')} : {make('bool')})",
                lambda: f"{one} {pick(('==', '==', '!='))} {other}",
                lambda: f"{make(pick(('int', 'string', 'dyn', 'dyn')))} == {make('dyn')}",
                lambda: f"{make('dyn')} == {make(pick(('int', 'string', 'bool', 'quantity', 'semver')))}",
                lambda: f"{make('int')} {pick(('<', '<=', '>', '>='))} {make(pick(('int', 'dyn')))}",
                lambda: f"{make('dyn')} {pick(('<', '>='))} {make(pick(('string', 'int', 'dyn')))}",
                lambda: f"{make(pick(('string', 'string', 'dyn')))} in {make('list(string)')}",
                lambda: f"{make(pick(('int', 'dyn')))} in {make('list(int)')}",
                lambda: (
                    f"{make(pick(('string', 'dyn')))}.{pick(('startsWith', 'endsWith', 'contains'))}({make('string')})"
                ),
                lambda: f"{make(pick(('string', 'dyn')))}.matches({self._pattern()})",
                lambda: (
                    f"{make('quantity')}.{pick(('isGreaterThan', 'isLessThan'))}({make(pick(('quantity', 'dyn')))})"
                ),
                lambda: f"{make('semver')}.{pick(('isGreaterThan', 'isLessThan'))}({make(pick(('semver', 'dyn')))})",
                lambda: f"{pick(('isQuantity', 'isSemver'))}({make('string')})",
                lambda: f"has({make.attribute()})",
                lambda: f"'{pick(_NAMES)}' in {self._domain()}",
                lambda: self._loop(depth, names, pick(("exists", "all", "exists_one")), kind_of_list),
                lambda: self._bind(depth, names, "bool"),
                lambda: f"{make('optional')}.hasValue()",
                lambda: self._odd(make),
            )
        )()

    def of(self, kind: str, depth: int, names: Sequence[tuple[str, str]]) -> str:
        """An expression of a type."""
        make, pick = self._of(depth, names), self._random.choice
        known = _named(names, kind)
        if known and self._random.random() < 0.4:
            return pick(known)
        if kind == "bool":
            return self.bool(depth, names)
        if kind == "dyn":
            return (
                make.attribute()
                if depth < 2
                else pick((make.attribute(), f"dyn({make('int')})", f"{make('optional')}.value()"))
            )
        return pick(self._simple(kind) if depth <= 0 else (*self._simple(kind), *self._compound(kind, make)))()

    def _simple(self, kind: str) -> Sequence[Any]:
        pick = self._random.choice
        texts = ("'gpu'", "'mig'", "''", "'GPU'", "'a b c'", "'1.2.3'", "'10Gi'", "r'\\d'", '"\\"x\\""', "'é'", "'-3'")
        numbers = ("0", "1", "2", "-1", "7", "0x10", "9223372036854775807", "-9223372036854775808")
        return {
            "string": (lambda: pick(texts), lambda: "device.driver"),
            "int": (lambda: pick(numbers), lambda: pick(numbers)),
            "quantity": (
                lambda: f"quantity('{pick(('0', '1', '40Gi', '500m', '1.5Gi', '1e3', '10k', 'bad', '-1'))}')",
                lambda: f"device.capacity['{DRIVER}'].{pick(_CAPACITIES)}",
            ),
            "semver": (lambda: f"semver('{pick(('1.2.3', '0.0.1', '1.2.3-rc.1', '1.2', 'x', '550.0.0'))}')",),
            "list(string)": (lambda: "['gpu', 'mig', 'A100 40GB']", lambda: "['1.2.3']"),
            "list(int)": (lambda: "[0, 1, 7]", lambda: "[2, -1, 2]"),
            "optional": (lambda: f"{self._domain()}.?{pick(_NAMES)}", lambda: f"{self._domain()}[?'{pick(_NAMES)}']"),
        }[kind]

    def _compound(self, kind: str, make: Any) -> Sequence[Any]:
        pick = self._random.choice
        text = lambda: make(pick(("string", "string", "dyn")))  # noqa: E731
        choice = lambda: f"({make('bool')} ? {make(kind)} : {make(kind)})"  # noqa: E731
        return {
            "string": (
                lambda: f"{text()}.{pick(('lowerAscii', 'upperAscii', 'trim'))}()",
                lambda: f"({make('string')} + {text()})",
                lambda: f"{text()}.replace({make('string')}, {make('string')})",
                lambda: f"{text()}.substring({make('int')})",
                lambda: f"{text()}.charAt({make('int')})",
                lambda: f"string({make(pick(('int', 'bool', 'dyn')))})",
                lambda: f"{make('list(string)')}.join('-')",
                lambda: f"{make('list(string)')}[{make('int')}]",
                lambda: f"{make('optional')}.orValue({make('string')})",
                choice,
            ),
            "int": (
                lambda: f"({make('int')} {pick(('+', '-', '*', '/', '%'))} {make(pick(('int', 'dyn')))})",
                lambda: f"-({make('int')})",
                lambda: f"size({text()})",
                lambda: f"{make(pick(('list(int)', 'list(string)')))}.size()",
                lambda: f"int({make(pick(('string', 'dyn', 'int')))})",
                lambda: f"{text()}.{pick(('indexOf', 'lastIndexOf'))}({make('string')})",
                lambda: f"{make('quantity')}.asInteger()",
                lambda: f"{make('quantity')}.compareTo({make('quantity')})",
                lambda: f"{make('semver')}.{pick(('major()', 'minor()', 'patch()'))}",
                lambda: f"{make('semver')}.compareTo({make('semver')})",
                choice,
            ),
            "quantity": (lambda: f"quantity({text()})", choice),
            "semver": (lambda: f"semver({text()}, {make('bool')})", lambda: f"semver({text()})", choice),
            "list(string)": (
                lambda: f"[{make('string')}, {make('string')}]",
                lambda: f"{text()}.split({make('string')})",
                lambda: f"{make('list(string)')}.filter(s, s.startsWith({make('string')}))",
                lambda: f"{make('list(int)')}.map(i, string(i))",
                lambda: f"({make('list(string)')} + {make('list(string)')})",
            ),
            "list(int)": (
                lambda: f"[{make('int')}, {make('int')}, {make('int')}]",
                lambda: f"{make('list(string)')}.map(s, s.size())",
                lambda: f"{make('list(int)')}.map(i, i > 0, i * 2)",
            ),
            "optional": (
                lambda: f"optional.of({make(pick(('int', 'string', 'dyn')))})",
                lambda: f"{make('optional')}.optMap(o, {make('string')})",
            ),
        }[kind]

    def _loop(self, depth: int, names: Sequence[tuple[str, str]], macro: str, kind: str) -> str:
        name = self._name()
        inner = (*names, (name, kind))
        return f"{self.of(f'list({kind})', depth - 1, names)}.{macro}({name}, {self.bool(depth - 1, inner)})"

    def _bind(self, depth: int, names: Sequence[tuple[str, str]], kind: str) -> str:
        name, bound = self._name(), self._random.choice(("int", "string", "bool", "quantity", "dyn"))
        value = self.of(bound, depth - 1, names)
        return f"cel.bind({name}, {value}, {self.of(kind, depth - 1, (*names, (name, bound)))})"

    def _odd(self, make: Any) -> str:
        """What is rare, or wrong."""
        return self._random.choice(
            (
                lambda: f"{make('string')} == {make('int')}",
                lambda: f"{make('dyn')}",
                lambda: f"{make.attribute()}.x == 1",
                lambda: f"has({make.attribute()}.x)",
                lambda: f"{make.attribute()} in {make.attribute()}",
                lambda: f"device.attributes.exists(d, d == {make('string')})",
                lambda: f"{self._domain()}.all(k, k != {make('string')})",
                lambda: f"{{'gpu': 1, 'mig': 2}}[{make('dyn')}] == {make('int')}",
                lambda: f"dyn({make('int')}) == 1.0",
                lambda: f"{make('int')} < 1.5",
                lambda: f"device.capacity[{make('string')}].memory == {make('quantity')}",
                lambda: f"device.attributes[{make('string')}].type == {make('string')}",
                lambda: f"'%d'.format([{make('int')}]) == {make('string')}",
                lambda: f"{make('quantity')}.add({make('int')}).isGreaterThan({make('quantity')})",
            )
        )()

    def _of(self, depth: int, names: Sequence[tuple[str, str]]) -> Any:
        author = self

        class Make:
            def __call__(self, kind: str) -> str:
                return author.of(kind, depth - 1, names)

            def attribute(self) -> str:
                return f"{author._domain()}.{author._random.choice(_NAMES)}"

        return Make()

    def _domain(self) -> str:
        domain = self._random.choice((DRIVER, DRIVER, DRIVER, DRIVER, "other.example.com"))
        return f"device.attributes['{domain}']"

    def _name(self) -> str:
        self._names += 1
        return f"v{self._names}"

    def _pattern(self) -> str:
        return self._random.choice(
            ("'^g'", "'(?i)GPU'", "r'^\\d+'", "'[a-c]|x$'", "'.*'", "''", r"r'\bA100\b'", "'a{2,3}'")
        )


_NAMES = ("type", "index", "healthy", "version", "product")
_CAPACITIES = ("memory", "cores")


def _named(names: Sequence[tuple[str, str]], kind: str) -> tuple[str, ...]:
    return tuple(name for name, of in names if of == kind)


def made_up(count: int, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Selectors with devices."""
    author = Author(seed)
    for _ in range(count):
        yield author.selector(), author.device()
