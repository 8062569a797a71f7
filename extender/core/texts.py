"""Texts of others, as they may be shown."""


def printable(text: str) -> str:
    """On one line and without control characters: what an author writes ends up in logs, events and terminals."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
