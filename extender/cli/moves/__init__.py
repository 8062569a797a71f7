"""Commands that make room: how it could be made, and having it made."""
