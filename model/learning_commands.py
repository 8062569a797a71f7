"""Commands of the learned rank: `kerf train`, `kerf evaluate`."""

from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from model.commands import JsonOption, TracesOption, errors, folder, progress_bar, publish, telling_faults

if TYPE_CHECKING:
    from extender.models.files import Manifest

train_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
evaluate_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

MODES = ("es", "ppo")


@train_app.command()
def train(
    traces: TracesOption,
    config: Annotated[Path, typer.Option(help="YAML file: traces, seeds, search (docs/model.md).")],
    out: Annotated[Path, typer.Option(help="Folder for checkpoint.npz, log.jsonl, a plot and model/.")] = Path(
        "kerf-train"
    ),
    mode: Annotated[
        str, typer.Option(help="es: evolution strategy (CMA-ES); ppo: actor-critic with attention.")
    ] = "es",
    episodes: Annotated[int, typer.Option(min=1, help="Replays of a trace in all, by generations.")] = 2000,
    save_interval: Annotated[int, typer.Option(min=1, help="Episodes between checkpoints, by generations.")] = 100,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in the folder.")] = False,
    ray: Annotated[
        str | None, typer.Option(help="Mode ppo: play on this Ray cluster; auto: on that of RAY_ADDRESS.")
    ] = None,
) -> None:
    """Fit the learned rank to traces; the model comes with its evaluation on orders that it never saw."""
    with telling_faults():
        from model.training import runs

        if mode not in MODES:
            raise ValueError(f"no mode {mode!r}; there is {', '.join(MODES)}")
        if mode == "ppo":
            manifest = _trained_by_ppo(folder(traces), config, out, episodes, save_interval, ray, resume=resume)
        else:
            chosen = runs.read_config(config)
            generations = runs.num_generations(chosen, episodes)
            num_validations = len(chosen.validation or chosen.train)
            with progress_bar(generations + num_validations) as tell:
                manifest = runs.train(
                    folder(traces), chosen, generations, runs.num_generations(chosen, save_interval), out, tell,
                    resume=resume,
                )  # fmt: skip
    if manifest is None:  # one of several learners, not the first
        return
    table = Table("trace", "seeds", "kerf @100", "fgd @100", "kerf @130", "fgd @130", title="Validation")
    for row in manifest.evaluation:
        means = [f"{fmean(policy[load]):.2f}" for load in ("100", "130") for policy in (row.kerf, row.fgd)]
        table.add_row(row.trace, str(len(row.seeds)), *means)
    publish({}, [table], None)
    errors().print(f"{out / runs.MODEL}", soft_wrap=True)


def _trained_by_ppo(
    traces: Path, config: Path, out: Path, episodes: int, save_interval: int, ray: str | None, *, resume: bool
) -> "Manifest | None":
    try:
        from model.training import ppo_rollouts, ppo_runs
        from model.training.peers import joined
    except ModuleNotFoundError as error:
        raise ValueError(f'{error}: --mode ppo needs Kerf with its extra "train"') from None

    chosen = ppo_runs.read_config(config)
    updates = ppo_runs.num_updates(chosen, episodes)
    playing = (lambda sources: ppo_rollouts.on_ray(sources, ray)) if ray else ppo_rollouts.here
    run = ppo_runs.Run(traces, chosen, out, peers=joined(), playing=playing)
    with progress_bar(1 + updates + len(chosen.validation or chosen.train)) as tell:
        return run.train(updates, ppo_runs.num_updates(chosen, save_interval), tell, resume=resume)


@evaluate_app.command()
def evaluate(
    traces: TracesOption,
    trace: Annotated[str, typer.Option(help="Name of the trace: openb_pod_list_NAME.csv.")] = "default",
    model: Annotated[Path | None, typer.Option(help="Folder of a model; default: the released one.")] = None,
    seeds: Annotated[str, typer.Option(help="As in 42-51 or 42,43.")] = "42-51",
    policies: Annotated[
        str,
        typer.Option(
            help="kerf, kerf-online, those of kerf simulate, NAME=FOLDER for other models; the first is compared with "
            "each other."
        ),
    ] = "kerf,kerf-online,fgd",
    json: JsonOption = None,
) -> None:
    """GPU allocation of policies on a trace at 100 % and 130 % arrived load, seed by seed."""
    with telling_faults():
        from extender.models.files import RELEASED
        from model.reports import interval
        from model.training.evaluations import differences
        from model.training.evaluations import evaluate as evaluated

        names = [name.strip() for name in policies.split(",")]
        if len({name.partition("=")[0] for name in names}) < len(names):
            raise ValueError(f"--policies {policies}: a policy is named twice")
        numbers = seed_range(seeds)
        with progress_bar(len(names) * len(numbers)) as tell:
            found = evaluated(folder(traces), trace, numbers, names, model or RELEASED, tell)
    table = Table("policy", "@100", "@130", "refused", title=f"{trace}: percent allocated, {len(numbers)} seeds, 95 %")
    for name, rows in found.items():
        table.add_row(name, str(interval(rows["100"])), str(interval(rows["130"])), str(sum(rows["refused"])))
    paired = Table(
        "less", "@100", "@130", title=f"{trace}: what {next(iter(found))} allocates more, paired by seed, 95 %"
    )
    for name, by_load in differences(found).items():
        paired.add_row(name, str(by_load["100"]), str(by_load["130"]))
    report: dict[str, Any] = {"trace": trace, "seeds": numbers, "policies": found}
    publish(report, [table, *([paired] if len(names) > 1 else [])], json)


def seed_range(text: str) -> list[int]:
    """Seeds of "42-51", "42,43" or both mixed. Raises ValueError."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        ends = [first, last] if dash else [first, first]
        if not all(end.isascii() and end.isdecimal() and len(end) <= 9 for end in ends):
            raise ValueError(f"--seeds {text}: write whole numbers, as in 42-51 or 42,43")
        low, high = int(ends[0]), int(ends[1])
        if not low <= high < low + 1000:
            raise ValueError(f"--seeds {text}: a range goes up, by less than 1000")
        found += range(low, high + 1)
    if len(set(found)) < len(found):
        raise ValueError(f"--seeds {text}: a seed is named twice")
    return found
