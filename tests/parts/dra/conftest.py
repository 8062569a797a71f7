"""A browser on the page."""

from tests.page.conftest import browser, open_page, server

__all__ = ["browser", "open_page", "server"]
