"""What goes wrong with a release."""


class ReleaseError(Exception):
    """A release that is not to be made, or a step that has failed; a sentence for whoever makes it."""
