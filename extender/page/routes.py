"""The pages: `/` with its event stream, and `/docs` for the HTTP API. Nothing is loaded from other hosts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from extender.page.stream import Streams

_FOLDER: Final = Path(__file__).parent / "static"
_SWAGGER_UI: Final = ("fastapi_offline", "static")
"""Package and folder with Swagger UI's script and style sheet."""
# Nothing from other hosts, and no scripts but these files: pods' texts can't become scripts.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {"content-security-policy": _POLICY, "cache-control": "no-cache"}
# Swagger UI sets styles on its elements, and its style sheet contains icons.
_API_HEADERS: Final = _HEADERS | {
    "content-security-policy": _POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'").replace(
        "img-src 'self'", "img-src 'self' data:"
    )
}


class _Files(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response


def install_page(app: FastAPI, streams: Streams, panels: Mapping[str, Path]) -> None:
    """Add the pages, their files and the event stream; `panels` are folders of parts, by name, with a `panel.js`."""
    names = sorted(panels)
    for name in names:
        app.mount(f"/page/parts/{name}", _Files(directory=panels[name]))
    imports = "".join(f"import of_{name} from './parts/{name}/panel.js';\n" for name in names)
    script = f"{imports}\nexport const PANELS_OF_PARTS = [{', '.join(f'of_{name}' for name in names)}];\n"

    @app.get("/page/parts.js", include_in_schema=False)
    async def panels_of_parts() -> Response:
        return Response(script, headers=_HEADERS, media_type="text/javascript")

    app.mount("/page", _Files(directory=_FOLDER, packages=[_SWAGGER_UI]))

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_FOLDER / "index.html", headers=_HEADERS)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(_FOLDER / "api.html", headers=_API_HEADERS)

    @app.get(
        "/live",
        tags=["explanation"],
        response_class=Response,
        responses={
            200: {"content": {"text/event-stream": {}}, "description": "A stream that does not end."},
            503: {"description": "Too many streams are open."},
        },
    )
    async def live(request: Request) -> Response:
        """The page's data as server-sent events: all nodes first, then changes."""
        return streams.open(request.headers.get("last-event-id", ""))
