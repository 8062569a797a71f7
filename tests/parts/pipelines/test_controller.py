"""The pipelines' controller against an API server of a test's own: what fails is tried again, and holds up nobody."""

import asyncio
from typing import Any

import msgspec

from extender.kube.client import ApiError, UnreachableError
from extender.parts.pipelines.controller import PipelineController
from extender.parts.pipelines.jobs import Job
from extender.parts.pipelines.specs import Pipeline

Manifest = dict[str, Any]


class Api:
    """Pipelines and Jobs; tells nobody of what is written, as a watch that lags."""

    def __init__(self) -> None:
        self.jobs: dict[str, Manifest] = {}
        self.pipelines: dict[str, Manifest] = {}
        self.errors: dict[str, Exception] = {}
        """What a call fails with whose path or body has a text."""
        self.tried = 0

    def _fail(self, text: str) -> None:
        for part, error in self.errors.items():
            if part in text:
                raise error

    async def get(self, path: str, query: object = None) -> bytes:
        return msgspec.json.encode(self.jobs[path.rpartition("/")[2]])

    async def post(self, path: str, body: bytes) -> bytes:
        self._fail(path + body.decode())
        made = msgspec.json.decode(body, type=Manifest)
        name = made["metadata"]["name"]
        if "dryRun=All" in path:
            self.tried += 1
        elif name in self.jobs:
            raise ApiError(409, "AlreadyExists", name)
        else:
            made["metadata"]["uid"] = f"uid-{name}"
            self.jobs[name] = made
        return msgspec.json.encode(made)

    async def ensure(self, path: str, body: bytes) -> bytes:
        raise NotImplementedError

    async def patch(self, path: str, body: bytes) -> bytes:
        self._fail(path)
        asked = msgspec.json.decode(body, type=Manifest)
        if "/jobs/" in path:
            self.jobs[path.rpartition("/")[2]]["spec"] |= asked["spec"]
            return b"{}"
        pipeline = self.pipelines[path.split("/")[-2]]
        if asked["metadata"]["resourceVersion"] != pipeline["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        pipeline["metadata"]["resourceVersion"] = str(int(pipeline["metadata"]["resourceVersion"]) + 1)
        pipeline["status"] = asked["status"]
        return msgspec.json.encode(pipeline)


def manifest(name: str, namespace: str, stages: list[Manifest]) -> Manifest:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"stages": stages}}


class Rig:
    def __init__(self, api: Api | None = None) -> None:
        self.now = 1000.0
        self.api = api or Api()
        self.controller = PipelineController(
            self.api,  # type: ignore[arg-type]
            clock=lambda: self.now,
            wall_clock=lambda: 0.0,
            standby=lambda: "",
        )

    def create(self, name: str, *stages: str) -> None:
        """A pipeline with a step in each stage."""
        steps = [{"name": "x", "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}]
        self.take(manifest(name, "ns", [{"name": stage, "steps": steps} for stage in stages]))

    def take(self, made: Manifest) -> None:
        """A pipeline as it is."""
        self.api.pipelines[made["metadata"]["name"]] = made
        self.controller.pipelines.upsert(msgspec.convert(made, Pipeline))

    def rounds(self, later_s: float = 0.0, count: int = 4) -> None:
        self.now += later_s
        for _ in range(count):
            asyncio.run(self.controller.run_round())

    def finish(self, job: str) -> None:
        self.api.jobs[job]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        self.controller.jobs.upsert(msgspec.convert(self.api.jobs[job], Job))

    def status(self, name: str) -> Manifest:
        found: Manifest = self.api.pipelines[name].get("status", {})
        return found


def test_from_acceptance_to_success() -> None:
    rig = Rig()
    rig.create("p", "a", "b")
    rig.rounds()
    assert rig.api.tried == 2  # every Job, once, before the first runs
    assert list(rig.api.jobs) == ["p-a-x-1"]
    rig.finish("p-a-x-1")
    rig.rounds()
    rig.finish("p-b-x-1")
    rig.rounds()
    assert rig.status("p")["phase"] == "Succeeded"
    assert rig.api.tried == 2
    assert rig.controller.num_by_phase() == {"Succeeded": 1}


def test_whatever_fails_is_tried_again_and_holds_up_nobody() -> None:
    for where in ("dryRun=All", "jobs{", "/status"):
        for error in (UnreachableError("cut"), ApiError(500, "", "broken"), RuntimeError("a fault")):
            rig = Rig()
            rig.create("bad", "a")
            rig.api.errors = {where: error}
            rig.rounds()
            rig.api.errors = {}
            rig.create("good", "a")
            rig.rounds()
            assert rig.status("good")["phase"] == "Running"  # at once; the other one waits for its second try
            assert not rig.status("bad")
            rig.rounds(60.0)
            assert rig.status("bad")["phase"] == "Running"
            assert sorted(rig.api.jobs) == ["bad-a-x-1", "good-a-x-1"]


def test_a_job_that_is_somebody_elses_is_not_taken_for_the_step() -> None:
    rig = Rig()
    rig.api.jobs["p-a-x-1"] = {"metadata": {"name": "p-a-x-1", "uid": "other"}, "spec": {}}
    rig.create("p", "a")
    rig.rounds()
    assert not rig.status("p")
    del rig.api.jobs["p-a-x-1"]  # the garbage collector has come to it
    rig.rounds(2.0)
    assert rig.status("p")["phase"] == "Running"
    assert rig.api.jobs["p-a-x-1"]["metadata"]["ownerReferences"][0]["uid"] == "uid-p"


def test_a_job_that_the_watch_has_not_told_of_is_not_made_twice() -> None:
    rig = Rig()
    rig.create("p", "a")
    rig.rounds()
    job = rig.api.jobs["p-a-x-1"]
    rig.controller.jobs.retain_only(set(), 0.0)  # as after a restart whose list is older
    rig.rounds()
    assert rig.api.jobs == {"p-a-x-1": job}


def test_a_status_of_an_older_version_is_not_written_over_a_newer_one() -> None:
    rig = Rig()
    rig.create("p", "a")
    rig.api.pipelines["p"]["metadata"]["resourceVersion"] = "2"  # cancelled, say: the watch will tell
    rig.rounds()
    assert not rig.status("p")
    rig.controller.pipelines.upsert(msgspec.convert(rig.api.pipelines["p"], Pipeline))
    rig.rounds()
    assert rig.status("p")["phase"] == "Running"


def test_a_change_that_the_watch_shows_before_the_answer_to_an_own_write_is_not_lost() -> None:
    class Overtaken(Api):
        """Its watch is faster than its answer, and shows that the pipeline has been cancelled since."""

        async def patch(self, path: str, body: bytes) -> bytes:
            answer = await super().patch(path, body)
            if path.endswith("/status") and b'"Running"' in body:
                pipeline = self.pipelines["p"]
                pipeline["metadata"]["resourceVersion"] = str(int(pipeline["metadata"]["resourceVersion"]) + 1)
                pipeline["spec"]["cancel"] = True
                rig.controller.pipelines.upsert(msgspec.convert(pipeline, Pipeline))
            return answer

    rig = Rig(Overtaken())
    rig.create("p", "a")
    rig.rounds()
    assert rig.api.jobs["p-a-x-1"]["spec"]["suspend"]


def test_a_job_of_another_namespace_that_names_a_pipeline_as_its_owner_says_nothing_of_it() -> None:
    rig = Rig()
    rig.create("p", "a")
    rig.rounds()
    forged = msgspec.json.decode(msgspec.json.encode(rig.api.jobs["p-a-x-1"]), type=Manifest)
    forged["metadata"] |= {"namespace": "another", "uid": "forged"}
    forged["metadata"]["labels"]["kerf.dev/pipeline-attempt"] = "9"
    forged["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    rig.controller.jobs.upsert(msgspec.convert(forged, Job))
    rig.rounds()
    assert rig.status("p")["phase"] == "Running"
    assert "suspend" not in rig.api.jobs["p-a-x-1"]["spec"]


class Slow(Api):
    """An API server each of whose answers takes some turns of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once = self.most_at_once = 0
        self.told: dict[str, asyncio.Future[int]] = {}
        """By pipeline: how many dry runs there had been when it was accepted."""

    async def post(self, path: str, body: bytes) -> bytes:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        for _ in range(20):
            await asyncio.sleep(0)
        self.at_once -= 1
        return await super().post(path, body)

    async def patch(self, path: str, body: bytes) -> bytes:
        name = path.split("/")[-2]
        if name in self.told and not self.told[name].done():
            self.told[name].set_result(self.tried)
        return await super().patch(path, body)


def large(name: str, namespace: str, num_stages: int, num_steps: int, *, alike: bool = False) -> Manifest:
    def step(stage: int, number: int) -> Manifest:
        image = "i" if alike else f"i-{stage}-{number}"
        return {"name": f"x{number}", "template": {"spec": {"containers": [{"name": "c", "image": image}]}}}

    stages = [{"name": f"s{n}", "steps": [step(n, number) for number in range(num_steps)]} for n in range(num_stages)]
    return manifest(name, namespace, stages)


def test_large_pipelines_of_one_author_keep_nobody_else_waiting() -> None:
    api = Slow()
    rig = Rig(api)

    async def scenario() -> int:
        api.told["good"] = asyncio.get_running_loop().create_future()
        for number in range(40):
            rig.take(large(f"evil-{number}", "evil", 8, 32))
        rounds = asyncio.create_task(rig.controller.run_round())
        for _ in range(200):
            await asyncio.sleep(0)
        before = api.tried
        assert before > 0
        rig.take(large("good", "good", 1, 1))
        after = await asyncio.wait_for(api.told["good"], 30.0) - before
        rounds.cancel()
        await asyncio.gather(rounds, return_exceptions=True)
        return after

    assert asyncio.run(scenario()) <= 100  # of 40 * 256
    assert api.most_at_once <= 2 * 16 + 16


def test_steps_that_are_alike_are_tried_once_in_their_stage() -> None:
    rig = Rig()
    rig.take(large("p", "ns", 3, 32, alike=True))
    rig.rounds(count=1)
    assert rig.api.tried == 3
    assert len(rig.api.jobs) == 32


def test_a_fault_in_the_last_of_many_steps_is_found_before_the_first_runs() -> None:
    rig = Rig()
    rig.api.errors = {"i-7-31": ApiError(422, "Invalid", "no")}
    rig.take(large("p", "ns", 8, 32))
    rig.rounds(count=1)
    assert rig.status("p")["phase"] == "Failed"
    assert rig.status("p")["conditions"][0]["message"] == "spec.stages[7].steps[31]: no"
    rig.api.errors = {}
    rig.rounds(3600.0)
    assert not rig.api.jobs


def test_a_pipeline_has_so_many_steps_in_all() -> None:
    for num_steps, reason in ((32, "Valid"), (33, "TooManySteps")):
        rig = Rig()
        rig.take(large("p", "ns", 8, num_steps, alike=True))
        rig.rounds(count=2)
        assert rig.status("p")["conditions"][0]["reason"] == reason
