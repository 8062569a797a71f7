"""Tokenizes expressions in linear time and parses them to syntax trees. Macros are not expanded."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple


class RefusedError(Exception):
    """An expression is invalid or uses an unsupported construct; `kind` names the construct."""

    def __init__(self, sentence: str, kind: str) -> None:
        super().__init__(sentence)
        self.kind = kind


class EvaluationError(Exception):
    """A CEL error. `&&`, `||` and the macros that use them ignore it if the other operand decides."""


class AbortError(Exception):
    """An error that aborts the whole evaluation."""


class Token(NamedTuple):
    """A token of an expression."""

    kind: str
    """"name", "int", "double", "string", "end", or the operator itself."""
    text: str
    """The text as written; a string's value."""
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
            raise RefusedError(f"syntax error at {expression[position : position + 20]!r}", "syntax")
        start, position = position, match.end()
        kind, text = match.lastgroup or "", match[0]
        if match["string"]:
            text, position = _string(expression, match.start("quote"), raw=bool(match["raw"]))
            tokens.append(Token("string", text, start))
        elif match["bytes"]:
            raise RefusedError("bytes are not supported", "bytes")
        elif match["unsigned"]:
            raise RefusedError("unsigned numbers are not supported", "uint")
        elif kind != "blank":
            tokens.append(Token(text if kind == "operator" else kind, text, start))
    return [*tokens, Token("end", "", position)]


def _string(expression: str, start: int, raw: bool) -> tuple[str, int]:
    """The value of the string whose opening quote is at `start`, and the position after it."""
    quote = expression[start]
    if expression.startswith(quote * 3, start):
        raise RefusedError("triple-quoted strings are not supported", "triple quotes")
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
    raise RefusedError("unterminated string", "syntax")


def _escaped(expression: str, start: int) -> tuple[str, int]:
    match = _ESCAPE.match(expression, start)
    if match is None:
        raise RefusedError(f"unknown escape {expression[start : start + 2]!r}", "syntax")
    simple, byte, short, long, octal = match.groups()
    if simple:
        return _SIMPLE.get(simple, simple), match.end()
    code = int(octal, 8) if octal else int(byte or short or long, 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise RefusedError("an escape that is not a character", "syntax")
    return chr(code), match.end()


_MAX_DEPTH: Final = 32
"""Kubernetes' limit is 250; each level takes several Python stack frames."""
_PRECEDENCE: Final = {
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
    operand: "Node"
    field: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    operand: "Node"
    key: "Node"
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A function, a method (`target` is set) or an operator: "_+_", "-_", "!_"; "_&&_" and "_||_" have two or more
    operands."""

    name: str
    args: tuple["Node", ...]
    target: "Node | None" = None


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
    """The syntax tree of an expression. Raises RefusedError."""
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
        """Consume the next token. Raises RefusedError if it is of another kind."""
        token = self._tokens[self._next]
        if self._kind != kind:
            raise RefusedError(f"{token.text!r} at {token.position}: expected {kind!r}", "syntax")
        self._next += 1
        return token

    def _accept(self, kind: str) -> bool:
        """Consume the next token if it is of this kind; return whether it is."""
        if self._kind != kind:
            return False
        self._next += 1
        return True

    def expression(self) -> Node:
        """Parse an expression, including `?:`."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RefusedError(f"nested more than {_MAX_DEPTH} levels deep", "nesting")
        node = self._logical("||", lambda: self._logical("&&", lambda: self._binary(3)))
        if self._accept("?"):
            then = self._logical("||", lambda: self._logical("&&", lambda: self._binary(3)))
            self.take(":")
            node = Conditional(node, then, self.expression())
        self._depth -= 1
        return node

    def _logical(self, operator: str, operand: Callable[[], Node]) -> Node:
        operands = [operand()]
        while self._accept(operator):
            operands.append(operand())
        return operands[0] if len(operands) == 1 else Call(f"_{operator}_", tuple(operands))

    def _binary(self, precedence: int) -> Node:
        """Parse left-associative operators of one precedence."""
        if precedence > 5:
            return self._unary()
        node = self._binary(precedence + 1)
        while _PRECEDENCE.get(self._kind) == precedence:
            operator = self._kind
            self._next += 1
            node = Call(f"_{operator}_", (node, self._binary(precedence + 1)))
        return node

    def _unary(self) -> Node:
        if self._accept("!"):
            return self._repeated("!")
        if self._accept("-"):
            if self._kind in ("int", "double"):
                return self._member(self._number("-"))
            return self._repeated("-")
        return self._member(self._primary())

    def _repeated(self, operator: str) -> Node:
        count = 1
        while self._accept(operator):
            count += 1
        negative = operator == "-" and self._kind in ("int", "double")
        if negative:
            raise RefusedError("a number with more than one sign", "signs")
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

    def _member(self, node: Node) -> Node:
        while self._kind in (".", "["):
            if self._accept("."):
                optional = self._accept("?")
                field = self.take("name").text
                if field in _CONSTANTS or field == "in":
                    raise RefusedError(f"reserved word {field} as a field name", "syntax")
                if self._kind == "(" and not optional:
                    node = Call(field, self._arguments(), node)
                else:
                    node = Select(node, field, optional)
            else:
                self.take("[")
                optional = self._accept("?")
                node = Index(node, self.expression(), optional)
                self.take("]")
        if self._kind == "{":
            raise RefusedError("messages are not supported", "messages")
        return node

    def _primary(self) -> Node:
        kind = self._kind
        if kind in ("int", "double"):
            return self._number()
        if kind == "string":
            return Literal(self.take("string").text)
        if self._accept("("):
            node = self.expression()
            self.take(")")
            return node
        if self._accept("["):
            return ListOf(self._list("]"))
        if self._accept("{"):
            return MapOf(self._entries())
        name = self.take("name").text
        if name in _CONSTANTS:
            return Literal(_CONSTANTS[name])
        return Call(name, self._arguments()) if self._kind == "(" else Name(name)

    def _arguments(self) -> tuple[Node, ...]:
        self.take("(")
        if self._accept(")"):
            return ()
        arguments = [self.expression()]
        while self._accept(","):
            arguments.append(self.expression())
        self.take(")")
        return tuple(arguments)

    def _list(self, end: str) -> tuple[Node, ...]:
        items: list[Node] = []
        while not self._accept(end):
            if self._kind == "?":
                raise RefusedError("optional list items are not supported", "optional items")
            items.append(self.expression())
            if not self._accept(","):
                self.take(end)
                break
        return tuple(items)

    def _entries(self) -> tuple[tuple[Node, Node], ...]:
        entries = []
        while not self._accept("}"):
            if self._kind == "?":
                raise RefusedError("optional map entries are not supported", "optional items")
            key = self.expression()
            self.take(":")
            entries.append((key, self.expression()))
            if not self._accept(","):
                self.take("}")
                break
        return tuple(entries)
