"""The pipeline controller: creates and stops the Jobs of pipelines, and writes their status.

All writes are idempotent: Jobs have deterministic names, and a status is written with the resourceVersion that it was
computed from. So a restart, two leaders for a moment, or a lagging watch do no harm.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any, Final

import msgspec

from extender.kube.background import Background, gather_all
from extender.kube.cache import Cache, Index
from extender.kube.client import ApiError, Transport
from extender.kube.decoding import Decoder
from extender.kube.watches import Reflector
from extender.parts.pipelines.jobs import JOBS_PATH, Job, Manifest, job_of, jobs_path, run_of
from extender.parts.pipelines.mlflow import BY_FLOW, Flows
from extender.parts.pipelines.specs import ACCEPTED, PIPELINES_PATH, Pipeline, Status, fault
from extender.parts.pipelines.states import Start, next_actions, refused
from extender.parts.pipelines.work_queue import FairWorkers, WorkQueue
from extender.queueing.pods.objects import PIPELINE_LABEL

logger = logging.getLogger(__name__)

_STANDBY_S: Final = 0.5
_PORTION: Final = 16
"""Jobs of a pipeline that are dry-run, created or stopped at a time, before it is requeued behind others."""
_STOPPED_WITHIN_S: Final = 1.0
"""Time for the watch to show suspended Jobs."""
_INVALID: Final = (400, 422)

_pipeline_decoder: Final = Decoder(Pipeline, whole=True)
_job_decoder: Final = Decoder(Job)
_BY_OWNER: Final[Index[Job]] = Index("owner", lambda job: [job.owner])


class PipelineController(Background):
    """Reconciles pipelines from `start` to `stop`; writes nothing on a standby."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        standby: Callable[[], str],
        mlflows: bool = False,
    ) -> None:
        """With `mlflows`, MLTaskScheduler's MLFlow objects are run as pipelines."""
        super().__init__("pipelines", needed=False)
        self._transport = transport
        self._wall_clock = wall_clock
        self._standby = standby
        self._due = WorkQueue(clock)
        self._turns = FairWorkers("pipeline", self._due, self._key_of, self._advance, standby)
        self._tried: dict[str, set[bytes]] = {}  # by UID, of pipelines with steps left to dry-run: digests of steps
        self.pipelines = Cache[Pipeline, Pipeline](lambda pipeline: pipeline, indexes=[BY_FLOW])
        self.jobs = Cache[Job, Job](lambda job: job, indexes=[_BY_OWNER])
        """Both caches are fed by the watches and by own writes."""
        self._flows = Flows(transport, self.pipelines, clock, wall_clock, standby) if mlflows else None
        self.pipelines.subscribe(self._pipeline_changed)
        self.jobs.subscribe(self._job_changed)
        self._reflectors: tuple[Reflector[Any], ...] = (
            Reflector(transport, PIPELINES_PATH, Pipeline, self.pipelines, clock, whole=True),
            Reflector(transport, JOBS_PATH, Job, self.jobs, clock, label_selector=PIPELINE_LABEL),
        )

    def start(self) -> None:
        """Start, in the running event loop."""
        for name, reflector in zip(("pipelines", "Jobs"), self._reflectors, strict=True):
            self.tasks.begin(f"pipelines' mirror of {name}", reflector.run, needed=False)
        super().start()
        if (flows := self._flows) is not None:
            rounds = partial(self._run_rounds, flows.due, flows.run_round, flows.reflector)
            self.tasks.begin("pipelines' mirror of MLFlows", flows.reflector.run, needed=False)
            self.tasks.begin("MLFlows", rounds, needed=False)

    @property
    def num_unread(self) -> int:
        """Unreadable objects that the watches skipped, counted each time."""
        reflectors = (*self._reflectors, *([self._flows.reflector] if self._flows is not None else ()))
        return sum(reflector.num_unread for reflector in reflectors)

    def num_by_phase(self) -> Counter[str]:
        """Number of pipelines by phase."""
        return Counter(pipeline.status.phase or "Waiting" for pipeline in self.pipelines.values())

    async def run_round(self) -> None:
        """Reconcile every pipeline that is due."""
        await self._turns.run_round()

    async def run(self) -> None:
        """Reconcile pipelines until cancelled."""
        await self._run_rounds(self._due, self.run_round)

    async def _run_rounds(
        self, due: WorkQueue, run_round: Callable[[], Awaitable[None]], *more: Reflector[Any]
    ) -> None:
        """Run rounds of pipelines or flows while this process leads and its caches are synced."""
        while True:
            await due.sleep()
            if self._standby() or not all(reflector.synced for reflector in (*self._reflectors, *more)):
                await asyncio.sleep(_STANDBY_S)  # due objects stay queued
                continue
            await run_round()

    def _pipeline_changed(self, old: Pipeline | None, new: Pipeline | None) -> None:
        if new is not None and (old is None or old.metadata.resource_version != new.metadata.resource_version):
            self._due.touch(new.metadata.uid)

    def _job_changed(self, old: Job | None, new: Job | None) -> None:
        for job in (old, new):
            if job is not None:
                self._due.touch(job.owner)

    def _key_of(self, uid: str) -> str:
        pipeline = self.pipelines.get(uid)
        return pipeline.key if pipeline is not None else ""

    async def _advance(self, uid: str) -> None:
        """Take the next actions for a pipeline, up to a portion, and write its status. Raises ClusterError."""
        pipeline = self.pipelines.get(uid)
        if pipeline is None or pipeline.metadata.deletion_timestamp:
            self._tried.pop(uid, None)
            return
        now = datetime.fromtimestamp(self._wall_clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        accepted = pipeline.status.condition(ACCEPTED)
        if accepted is None:
            why = fault(pipeline.spec) or await self._dry_run(pipeline)
            if why is not None:
                self._tried.pop(uid, None)
                await self._write_status(pipeline, refused(pipeline, *why, now))
                return
            if uid in self._tried:
                self._due.touch(uid)  # more steps to dry-run, after other pipelines
                return
        elif accepted.status != "True":
            return
        # Ignore Jobs of other namespaces that name it as their owner.
        jobs = (
            job for job in self.jobs.by_group(_BY_OWNER, uid) if job.metadata.namespace == pipeline.metadata.namespace
        )
        runs = [run for job in jobs if (run := run_of(job)) is not None]
        actions = next_actions(pipeline, runs, now)
        stop, start = actions.stop[:_PORTION], actions.start[:_PORTION]
        await gather_all(self._suspend(pipeline, run.job) for run in stop)
        await gather_all(self._create(pipeline, one) for one in start)
        if len(start) < len(actions.start):
            self._due.touch(uid)
        if len(stop) < len(actions.stop):
            self._due.touch(uid, _STOPPED_WITHIN_S)  # the watch shows which were stopped
        if actions.status != pipeline.status:
            await self._write_status(pipeline, actions.status)

    async def _dry_run(self, pipeline: Pipeline) -> tuple[str, str] | None:
        """Why the API server would refuse a Job, as reason and message; None if it would not.

        The schema of pipelines does not include that of pods, so Jobs are checked by a dry run with admission. Steps of
        a stage that differ only in name are checked once. A portion is checked at a time; the pipeline is in `_tried`
        until all are.
        """
        uid = pipeline.metadata.uid
        tried, portion = self._tried.setdefault(uid, set()), dict[bytes, tuple[str, Manifest]]()
        for number, stage in enumerate(pipeline.spec.stages):
            for step_number, step in enumerate(stage.steps):
                content = msgspec.json.encode((stage.name, msgspec.structs.replace(step, name="")))
                digest = sha256(content).digest()
                if digest not in tried and digest not in portion:
                    if len(portion) == _PORTION:
                        return await self._dry_run_jobs(pipeline, portion)
                    place = f"spec.stages[{number}].steps[{step_number}]"
                    portion[digest] = place, job_of(pipeline, stage, step, 1)
        why = await self._dry_run_jobs(pipeline, portion)
        del self._tried[uid]
        return why

    async def _dry_run_jobs(
        self, pipeline: Pipeline, portion: Mapping[bytes, tuple[str, Manifest]]
    ) -> tuple[str, str] | None:
        """The same for some Jobs, by digest of the step, each with its place in the spec."""

        async def refusal(place: str, manifest: Manifest) -> tuple[str, str] | None:
            try:
                await self._post(pipeline, manifest, "?dryRun=All&fieldValidation=Strict")
            except ApiError as error:
                if error.status in _INVALID:
                    return "InvalidTemplate", f"{place}: {error.message}"
                if error.status != 409:  # a Job of that name exists; `_create` finds out whose it is
                    raise
            return None

        refusals = await gather_all(refusal(place, manifest) for place, manifest in portion.values())
        self._tried[pipeline.metadata.uid].update(portion)
        return next((why for why in refusals if why is not None), None)

    async def _create(self, pipeline: Pipeline, start: Start) -> None:
        """Create a Job unless it exists already."""
        manifest = job_of(pipeline, start.stage, start.step, start.attempt)
        try:
            created = _job_decoder.decode(await self._post(pipeline, manifest))
        except ApiError as error:
            if error.status != 409:
                raise
            name = manifest["metadata"]["name"]
            created = _job_decoder.decode(await self._transport.get(f"{jobs_path(pipeline)}/{name}"))
            if created.owner != pipeline.metadata.uid:
                # Probably of a deleted pipeline of the same name; the garbage collector will remove it.
                raise ApiError(409, "AlreadyExists", f"Job {name} belongs to someone else") from error
        self.jobs.written(created)

    async def _post(self, pipeline: Pipeline, manifest: Manifest, query: str = "") -> bytes:
        return await self._transport.post(f"{jobs_path(pipeline)}{query}", msgspec.json.encode(manifest))

    async def _suspend(self, pipeline: Pipeline, job: str) -> None:
        try:
            await self._transport.patch(f"{jobs_path(pipeline)}/{job}", b'{"spec":{"suspend":true}}')
        except ApiError as error:
            if error.status not in (404, *_INVALID):  # deleted, or finished a moment ago and immutable
                raise

    async def _write_status(self, pipeline: Pipeline, status: Status) -> None:
        """Write a status unless the pipeline changed meanwhile; the watch then requeues it."""
        body = {"metadata": {"resourceVersion": pipeline.metadata.resource_version}, "status": status}
        try:
            answer = await self._transport.patch(f"{pipeline.path}/status", msgspec.json.encode(body))
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return
        self.pipelines.written(_pipeline_decoder.decode(answer))
