"""Selectors that are made up, and devices for them."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.dra.expressions import DRIVER

_NAMES = ("type", "index", "healthy", "version", "product")
_CAPACITIES = ("memory", "cores")
_DOMAIN = f"device.attributes['«{DRIVER}|{DRIVER}|{DRIVER}|{DRIVER}|other.example.com»']"
_NAME = f"«{'|'.join(_NAMES)}»"
_ATTRIBUTE = f"{_DOMAIN}.{_NAME}"
_CAPACITY = f"«{'|'.join(_CAPACITIES)}»"
_CHOICE = "({bool} ? {kind} : {kind})"
_PATTERN = r"«'^g'|'(?i)GPU'|r'^\d+'|'[a-c]¦x$'|'.*'|''|r'\bA100\b'|'a{2,3}'»"

# In templates «a|b» is one of these texts, with ¦ for |, and {a|b} an expression of one of these types, one level
# deeper. {kind} is of the same type each time; {loop} and {bind} have a variable.

_BOOL: Sequence[str] = (
    "{bool} && {bool}",
    "({bool} || {bool})",
    "!({bool})",
    "({bool} ? {bool} : {bool})",
    "{kind} «==|==|!=» {kind}",
    "{int|string|dyn|dyn} == {dyn}",
    "{dyn} == {int|string|bool|quantity|semver}",
    "{int} «<|<=|>|>=» {int|dyn}",
    "{dyn} «<|>=» {string|int|dyn}",
    "{string|string|dyn} in {list(string)}",
    "{int|dyn} in {list(int)}",
    "{string|dyn}.«startsWith|endsWith|contains»({string})",
    f"{{string|dyn}}.matches({_PATTERN})",
    "{quantity}.«isGreaterThan|isLessThan»({quantity|dyn})",
    "{semver}.«isGreaterThan|isLessThan»({semver|dyn})",
    "«isQuantity|isSemver»({string})",
    f"has({_ATTRIBUTE})",
    f"'{_NAME}' in {_DOMAIN}",
    "{loop}",
    "{bind}",
    "{optional}.hasValue()",
    "{odd}",
)
_LEAVES: Mapping[str, Sequence[str]] = {
    "bool": ("true", "false", "device.allowMultipleAllocations", f"has({_ATTRIBUTE})"),
    "string": (
        r"""«'gpu'|'mig'|''|'GPU'|'a b c'|'1.2.3'|'10Gi'|r'\d'|"\"x\""|'é'|'-3'»""",
        "device.driver",
    ),
    "int": ("«0|1|2|-1|7|0x10|9223372036854775807|-9223372036854775808»",),
    "quantity": (
        "quantity('«0|1|40Gi|500m|1.5Gi|1e3|10k|bad|-1»')",
        f"device.capacity['{DRIVER}'].{_CAPACITY}",
    ),
    "semver": ("semver('«1.2.3|0.0.1|1.2.3-rc.1|1.2|x|550.0.0»')",),
    "list(string)": ("['gpu', 'mig', 'A100 40GB']", "['1.2.3']"),
    "list(int)": ("[0, 1, 7]", "[2, -1, 2]"),
    "optional": (f"{_DOMAIN}.?{_NAME}", f"{_DOMAIN}[?'{_NAME}']"),
}
_COMPOUNDS: Mapping[str, Sequence[str]] = {
    "string": (
        "{text}.«lowerAscii|upperAscii|trim»()",
        "({string} + {text})",
        "{text}.replace({string}, {string})",
        "{text}.substring({int})",
        "{text}.charAt({int})",
        "string({int|bool|dyn})",
        "{list(string)}.join('-')",
        "{list(string)}[{int}]",
        "{optional}.orValue({string})",
        _CHOICE,
    ),
    "int": (
        "({int} «+|-|*|/|%» {int|dyn})",
        "-({int})",
        "size({text})",
        "{list(int)|list(string)}.size()",
        "int({string|dyn|int})",
        "{text}.«indexOf|lastIndexOf»({string})",
        "{quantity}.asInteger()",
        "{quantity}.compareTo({quantity})",
        "{semver}.«major|minor|patch»()",
        "{semver}.compareTo({semver})",
        _CHOICE,
    ),
    "quantity": ("quantity({text})", _CHOICE),
    "semver": ("semver({text}, {bool})", "semver({text})", _CHOICE),
    "list(string)": (
        "[{string}, {string}]",
        "{text}.split({string})",
        "{list(string)}.filter(s, s.startsWith({string}))",
        "{list(int)}.map(i, string(i))",
        "({list(string)} + {list(string)})",
    ),
    "list(int)": (
        "[{int}, {int}, {int}]",
        "{list(string)}.map(s, s.size())",
        "{list(int)}.map(i, i > 0, i * 2)",
    ),
    "optional": ("optional.of({int|string|dyn})", "{optional}.optMap(o, {string})"),
}
_ODD: Sequence[str] = (
    "{string} == {int}",
    "{dyn}",
    f"{_ATTRIBUTE}.x == 1",
    f"has({_ATTRIBUTE}.x)",
    f"{_ATTRIBUTE} in {_ATTRIBUTE}",
    "device.attributes.exists(d, d == {string})",
    f"{_DOMAIN}.all(k, k != {{string}})",
    "{'gpu': 1, 'mig': 2}[{dyn}] == {int}",
    "dyn({int}) == 1.0",
    "{int} < 1.5",
    "device.capacity[{string}].memory == {quantity}",
    "device.attributes[{string}].type == {string}",
    "'%d'.format([{int}]) == {string}",
    "{quantity}.add({int}).isGreaterThan({quantity})",
)
"""What is rare, or wrong."""
_KINDS_COMPARED = ("int", "string", "string", "dyn", "quantity", "semver")
_PART = re.compile(r"«([^»]*)»|\{([a-z()|]+)\}")
_Names = Sequence[tuple[str, str]]
"""The variables, by name and type."""


class Author:
    """Writes selectors of all kinds that make sense to CEL, and some that do not."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._num_names = 0

    def selector(self) -> str:
        return self._of("bool", self._random.choice((1, 2, 2, 3, 3, 4)), ())

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

    def _of(self, kind: str, depth: int, names: _Names) -> str:
        """An expression of a type, of a depth at most."""
        known = tuple(name for name, of in names if of == kind)
        if known and self._random.random() < 0.4:
            return self._random.choice(known)
        if kind == "dyn":
            templates: Sequence[str] = (_ATTRIBUTE,)
            if depth >= 2:
                templates = (_ATTRIBUTE, "dyn({int})", "{optional}.value()")
        elif depth <= 0:
            templates = (*_LEAVES[kind], *(known if kind == "bool" else ()))
        else:
            templates = _BOOL if kind == "bool" else (*_LEAVES[kind], *_COMPOUNDS[kind])
        return self._filled(self._random.choice(templates), kind, depth, names)

    def _filled(self, template: str, kind: str, depth: int, names: _Names) -> str:
        pick = self._random.choice
        same = pick(_KINDS_COMPARED) if kind == "bool" else kind

        def part(match: re.Match[str]) -> str:
            texts: str | None = match[1]
            if texts is not None:
                return pick(texts.split("|")).replace("¦", "|")
            of = pick(match[2].split("|"))
            if of == "odd":
                return self._filled(pick(_ODD), kind, depth, names)
            if of in ("loop", "bind"):
                return self._with_variable(of, depth - 1, names)
            return self._of({"kind": same, "text": pick(("string", "string", "dyn"))}.get(of, of), depth - 1, names)

        return _PART.sub(part, template)

    def _with_variable(self, kind: str, depth: int, names: _Names) -> str:
        self._num_names += 1
        name, pick = f"v{self._num_names}", self._random.choice
        of = pick(("int", "string") if kind == "loop" else ("int", "string", "bool", "quantity", "dyn"))
        inner = self._of("bool", depth, (*names, (name, of)))
        if kind == "loop":
            return f"{self._of(f'list({of})', depth, names)}.{pick(('exists', 'all', 'exists_one'))}({name}, {inner})"
        return f"cel.bind({name}, {self._of(of, depth, names)}, {inner})"


def made_up(count: int, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    author = Author(seed)
    for _ in range(count):
        yield author.selector(), author.device()
