"""The tree of an expression. Macros are calls here, as they are written.

What goes wrong with an expression: before it is evaluated, and while it is.

Tokens of an expression, found in one pass: linear in its length.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple


class RefusedError(Exception):
    """An expression that is none, or of which something is not handled; `kind` says of what."""

    def __init__(self, sentence: str, kind: str) -> None:
        super().__init__(sentence)
        self.kind = kind


class EvaluationError(Exception):
    """A value that CEL calls an error. `&&`, `||` and the macros that use them put up with it where the other side
    decides."""


class AbortError(Exception):
    """What ends an evaluation whatever stands around it."""


class Token(NamedTuple):
    """A piece of an expression."""

    kind: str
    """"name", "int", "double", "string", "end", or the operator itself."""
    text: str
    """Of a string its value."""
    position: int


_TOKEN: Final = re.compile(
    r"""
    (?P<blank>(?:[\t\n\f\r ]|//[^\n]*)+)
    |(?P<string>(?P<raw>[rR]?)(?P<quote>["']))
    |(?P<bytes>(?:[bB][rR]?|[rR][bB])["'])
    |(?P<name>[_a-zA-Z][_a-zA-Z0-9]*)
    |(?P<double>[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    |(?P<int>(?:0x[0-9a-fA-F]+|[0-9]+)(?P<unsigned>[uU]?))
    |(?P<operator>&&|\|\||[=!<>]=|[()\[\]{}.,?:<>+*/%!-])
    """,
    re.VERBOSE | re.ASCII,
)
_ESCAPE: Final = re.compile(
    r"\\(?:([abfnrtv\\'\"`?])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2}))", re.ASCII
)
_SIMPLE: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def tokens_of(expression: str) -> list[Token]:
    """The tokens of an expression, "end" last. Raises RefusedError."""
    tokens: list[Token] = []
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise RefusedError(f"not understood at {expression[position : position + 20]!r}", "syntax")
        start, position = position, match.end()
        kind, text = match.lastgroup or "", match[0]
        if match["string"]:
            text, position = _string(expression, match.start("quote"), raw=bool(match["raw"]))
            tokens.append(Token("string", text, start))
        elif match["bytes"]:
            raise RefusedError("bytes are not handled", "bytes")
        elif match["unsigned"]:
            raise RefusedError("unsigned numbers are not handled", "uint")
        elif kind != "blank":
            tokens.append(Token(text if kind == "operator" else kind, text, start))
    return [*tokens, Token("end", "", position)]


def _string(expression: str, start: int, raw: bool) -> tuple[str, int]:
    """The value of the string whose quote is at `start`, and where it ends."""
    quote = expression[start]
    if expression.startswith(quote * 3, start):
        raise RefusedError("strings in triple quotes are not handled", "triple quotes")
    parts: list[str] = []
    position = start + 1
    while position < len(expression):
        char = expression[position]
        if char == quote:
            return "".join(parts), position + 1
        if char in "\r\n":
            break
        if char == "\\" and not raw:
            char, position = _escaped(expression, position)
        else:
            position += 1
        parts.append(char)
    raise RefusedError("a string that does not end", "syntax")


def _escaped(expression: str, start: int) -> tuple[str, int]:
    match = _ESCAPE.match(expression, start)
    if match is None:
        raise RefusedError(f"unknown escape {expression[start : start + 2]!r}", "syntax")
    simple, byte, short, long, octal = match.groups()
    if simple:
        return _SIMPLE.get(simple, simple), match.end()
    code = int(octal, 8) if octal else int(byte or short or long, 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise RefusedError("an escape that is no character", "syntax")
    return chr(code), match.end()


_MAX_DEPTH: Final = 32
"""Kubernetes' own is 250: nobody nests that deep by hand, and each level costs Python some frames."""
_RANKS: Final = {
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%"), 5),
}
_CONSTANTS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Literal:
    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    of: "Node"
    field: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    of: "Node"
    key: "Node"
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A function, a method where it is of something, or an operator: "_+_", "-_", "!_"; "_&&_" and "_||_" of two or
    more."""

    name: str
    args: tuple["Node", ...]
    of: "Node | None" = None


@dataclass(frozen=True, slots=True)
class Conditional:
    condition: "Node"
    then: "Node"
    otherwise: "Node"


@dataclass(frozen=True, slots=True)
class ListOf:
    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class MapOf:
    items: tuple[tuple["Node", "Node"], ...]


Node = Literal | Name | Select | Index | Call | Conditional | ListOf | MapOf


def parse(expression: str) -> Node:
    """The tree of an expression. Raises RefusedError."""
    parser = _Parser(tokens_of(expression))
    tree = parser.expression()
    parser.take("end")
    return tree


class _Parser:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    @property
    def _kind(self) -> str:
        token = self._tokens[self._next]
        return "in" if token.kind == "name" and token.text == "in" else token.kind

    def take(self, kind: str) -> Token:
        """The next token, which has to be of this kind."""
        token = self._tokens[self._next]
        if self._kind != kind:
            raise RefusedError(f"{token.text!r} at {token.position} where {kind!r} is expected", "syntax")
        self._next += 1
        return token

    def _found(self, kind: str) -> bool:
        """Whether the next token is of this kind; then it is taken."""
        if self._kind != kind:
            return False
        self._next += 1
        return True

    def expression(self) -> Node:
        """An expression with its ternary."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RefusedError(f"nested more than {_MAX_DEPTH} deep", "nesting")
        found = self._any_of("||", lambda: self._any_of("&&", lambda: self._binary(3)))
        if self._found("?"):
            then = self._any_of("||", lambda: self._any_of("&&", lambda: self._binary(3)))
            self.take(":")
            found = Conditional(found, then, self.expression())
        self._depth -= 1
        return found

    def _any_of(self, operator: str, operand: Callable[[], Node]) -> Node:
        found = [operand()]
        while self._found(operator):
            found.append(operand())
        return found[0] if len(found) == 1 else Call(f"_{operator}_", tuple(found))

    def _binary(self, rank: int) -> Node:
        """Operators of one rank, from the left."""
        if rank > 5:
            return self._unary()
        found = self._binary(rank + 1)
        while _RANKS.get(self._kind) == rank:
            operator = self._kind
            self._next += 1
            found = Call(f"_{operator}_", (found, self._binary(rank + 1)))
        return found

    def _unary(self) -> Node:
        if self._found("!"):
            return self._repeated("!")
        if self._found("-"):
            if self._kind in ("int", "double"):
                return self._member(self._number("-"))
            return self._repeated("-")
        return self._member(self._primary())

    def _repeated(self, operator: str) -> Node:
        count = 1
        while self._found(operator):
            count += 1
        negative = operator == "-" and self._kind in ("int", "double")
        if negative:
            raise RefusedError("more than one sign of a number", "signs")
        operand = self._member(self._primary())
        return Call(f"{operator}_", (operand,)) if count % 2 else operand

    def _number(self, sign: str = "") -> Literal:
        token = self.take(self._kind)
        if token.kind == "double":
            value = float(sign + token.text)
            if value in (float("inf"), float("-inf")):
                raise RefusedError("a number that is too large", "syntax")
            return Literal(value)
        number = int(sign + token.text, 16 if token.text.startswith("0x") else 10) if len(token.text) < 40 else 2**64
        if not -(2**63) <= number < 2**63:
            raise RefusedError("a number that is too large", "syntax")
        return Literal(number)

    def _member(self, found: Node) -> Node:
        while self._kind in (".", "["):
            if self._found("."):
                optional = self._found("?")
                field = self.take("name").text
                if field in _CONSTANTS or field == "in":
                    raise RefusedError(f"a field that is called {field}", "syntax")
                if self._kind == "(" and not optional:
                    found = Call(field, self._arguments(), found)
                else:
                    found = Select(found, field, optional)
            else:
                self.take("[")
                optional = self._found("?")
                found = Index(found, self.expression(), optional)
                self.take("]")
        if self._kind == "{":
            raise RefusedError("messages are not handled", "messages")
        return found

    def _primary(self) -> Node:
        kind = self._kind
        if kind in ("int", "double"):
            return self._number()
        if kind == "string":
            return Literal(self.take("string").text)
        if self._found("("):
            found = self.expression()
            self.take(")")
            return found
        if self._found("["):
            return ListOf(self._list("]"))
        if self._found("{"):
            return MapOf(self._entries())
        name = self.take("name").text
        if name in _CONSTANTS:
            return Literal(_CONSTANTS[name])
        return Call(name, self._arguments()) if self._kind == "(" else Name(name)

    def _arguments(self) -> tuple[Node, ...]:
        self.take("(")
        if self._found(")"):
            return ()
        found = [self.expression()]
        while self._found(","):
            found.append(self.expression())
        self.take(")")
        return tuple(found)

    def _list(self, end: str) -> tuple[Node, ...]:
        found: list[Node] = []
        while not self._found(end):
            if self._kind == "?":
                raise RefusedError("optional items of lists are not handled", "optional items")
            found.append(self.expression())
            if not self._found(","):
                self.take(end)
                break
        return tuple(found)

    def _entries(self) -> tuple[tuple[Node, Node], ...]:
        found = []
        while not self._found("}"):
            if self._kind == "?":
                raise RefusedError("optional entries of maps are not handled", "optional items")
            key = self.expression()
            self.take(":")
            found.append((key, self.expression()))
            if not self._found(","):
                self.take("}")
                break
        return tuple(found)
