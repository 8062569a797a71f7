"""Tokens of an expression, found in one pass: linear in its length."""

import re
from typing import Final, NamedTuple

from extender.dra.cel.errors import RefusedError


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
