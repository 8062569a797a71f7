"""Selectors that are made up, and devices for them."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from tests.dra.expressions import DRIVER


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
        return str(pick(self._simple(kind) if depth <= 0 else (*self._simple(kind), *self._compound(kind, make)))())

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

        def text() -> str:
            return str(make(pick(("string", "string", "dyn"))))

        def choice() -> str:
            return f"({make('bool')} ? {make(kind)} : {make(kind)})"

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
