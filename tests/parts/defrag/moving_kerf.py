"""`kerf serve` that also carries out plans written by hand: `python -m tests.parts.defrag.moving_kerf serve ...`."""

from typing import Annotated

import msgspec
import typer
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from extender.api.app import create_app
from extender.cli.logs import configure_logs
from extender.cli.settings import KubeconfigOption, SetOption, api_server, load
from extender.parts.defrag.checks import RoomError
from extender.parts.defrag.mover import Mover
from extender.parts.defrag.plan import RoomPlan
from extender.queueing.kept_places import PlaceKeeper
from extender.server.run import run

app = typer.Typer()


@app.callback()
def main() -> None:
    """Commands like those of `kerf`."""


@app.command()
def serve(
    port: Annotated[int, typer.Option()], kubeconfig: KubeconfigOption = None, settings: SetOption = None
) -> None:
    loaded = load(None, settings, {"server.port": port, "cluster.kubeconfig": kubeconfig})
    configure_logs(loaded.log)
    kerf = create_app(loaded, api_server(loaded.cluster))
    mover = kerf.state.parts.capabilities.get(PlaceKeeper)
    assert isinstance(mover, Mover)

    async def begin(request: Request) -> JSONResponse:
        plan = msgspec.json.decode(await request.body(), type=RoomPlan)
        try:
            return JSONResponse({"id": await mover.begin(plan, "by hand")})
        except RoomError as error:
            return JSONResponse({"why": str(error)})

    async def state(request: Request) -> JSONResponse:
        return JSONResponse(msgspec.to_builtins(mover.state()))

    kerf.router.routes.append(Route("/begin", begin, methods=["POST"]))
    kerf.router.routes.append(Route("/moving", state))
    run(kerf, loaded)


if __name__ == "__main__":
    app()
