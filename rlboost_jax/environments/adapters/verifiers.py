"""verifiers (the API of its v1): tasksets, with their tools, users, stops, rewards and metrics.

    environment.name = "verifiers"
    environment.options = {"taskset": "my_taskset", "taskset_options": {"split": "train"}}

verifiers runs an episode by itself and asks for turns; here each of its questions is an
observation, and a turn is the answer. What asks is `verifiers_harness`, in this process. Where a
taskset wants another harness (an agent of the command line, a container), train it through the
gateway.
"""

import asyncio
import functools
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rlboost_jax.environments.adapters.packages import imported, known, place_of
from rlboost_jax.environments.adapters.verifiers_answers import TurnWanted, VerifiersAnswers
from rlboost_jax.environments.protocol import Message, Step, Tool, Turn
from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.mistakes import ConfigError

EXTRA: Final = "verifiers"
HELDOUT_OF: Final = 8  # one task in so many is for evaluation
_MOST_READ: Final = 100_000  # tasks of one that never ends


class Verifiers:
    """One episode of one task."""

    def __init__(
        self,
        taskset: str,
        taskset_options: dict[str, Any] | None = None,
        env: str = "",
        env_options: dict[str, Any] | None = None,
        policy: str = "",
    ) -> None:
        """
        Args:
            taskset: name of an installed package that has one.
            taskset_options: its settings.
            env: of an environment that plays it; "": the taskset's own, or one agent.
            env_options: settings of the environment; one of a role is under its name.
            policy: the role that is trained, where there are several.
        """
        imported("verifiers.v1", extra=EXTRA)
        self._key = json.dumps(
            [taskset, taskset_options or {}, env, env_options or {}, policy], sort_keys=True
        )
        _config(self._key)
        self._question: TurnWanted | None = None
        self._answers: VerifiersAnswers | None = None
        self.tools: dict[str, Tool] = {}

    async def reset(self, example: Mapping[str, Any], seed: int) -> tuple[Message, ...]:
        """Return the first question to the policy.

        Raises RuntimeError if verifiers cannot begin.
        """
        host = await asyncio.to_thread(_host, self._key)
        task = await asyncio.to_thread(host.task, *place_of(example, seed))
        self._answers = VerifiersAnswers(host.loop)
        question = await self._answers.begin(host.env, task, host.role)
        if not isinstance(question, TurnWanted):
            raise RuntimeError(f"{task.data.name or 'task'}: its episode ended before a turn")
        self._question = question
        self.tools = {tool["name"]: _tool(tool) for tool in question.tools}
        return tuple(question.new)

    async def step(self, turn: Turn) -> Step:
        """Return verifiers' next question, or its rewards.

        Raises RuntimeError if the episode failed.
        """
        assert self._answers is not None, "reset comes first"
        said = await self._answers.answer(turn)
        if isinstance(said, TurnWanted):
            return Step(observation=tuple(said.new))
        numbers = {name: float(value) for name, value in said.metrics.items()}
        return Step(
            reward=said.reward, done=True, metrics={"solved": float(said.reward >= 1)} | numbers
        )

    async def close(self) -> None:
        """Have verifiers release its servers and folders."""
        if self._answers is not None:
            await self._answers.close()


class _Served:
    """verifiers in this process: its environment, served in a loop of its own."""

    def __init__(self, key: str) -> None:
        config, self.role = _config(key)
        self._lock = threading.Lock()
        self._read: tuple[list[Any], list[Any]] = ([], [])  # for training, for evaluation
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="verifiers", daemon=True).start()
        self.env = asyncio.run_coroutine_threadsafe(self._served(config), self.loop).result()
        self._tasks: Iterator[Any] | None = iter(self.env.taskset)

    def task(self, place: int, heldout: bool) -> Any:
        """Task at a place among those for training or evaluation; after the last comes the first.

        Raises:
            ValueError: there is none.
        """
        with self._lock:
            mine = self._read[heldout]
            while len(mine) <= place and self._tasks is not None:
                if (task := next(self._tasks, None)) is None or sum(map(len, self._read)) > (
                    _MOST_READ
                ):
                    self._tasks = None
                else:
                    text = json.dumps(_content(task), sort_keys=True, default=str)
                    digest = hashlib.sha256(text.encode()).digest()
                    self._read[digest[0] % HELDOUT_OF == 0].append(task)
            if not mine:
                kind = "evaluation" if heldout else "training"
                raise ValueError(f"the taskset has no task for {kind}; it has too few of them")
            return mine[place % len(mine)]

    async def _served(self, config: Any) -> Any:
        loaders = imported("verifiers.v1.utils.loaders", extra=EXTRA)
        env = loaders.load_environment(config)
        await env.serving().__aenter__()  # until the process ends
        return env


@functools.cache
def _host(key: str) -> _Served:
    """Server of the environment, shared by all episodes of a process."""
    return _Served(key)


def _config(key: str) -> tuple[Any, str]:
    """Configuration of the environment, and the role that the policy plays. Raises ConfigError."""
    taskset, taskset_options, env, env_options, policy = foreign_json.decode(
        key, "environment.options", list
    )
    loaders = imported("verifiers.v1.utils.loaders", extra=EXTRA)
    agents = imported("verifiers.v1.configs.agent", extra=EXTRA)
    harness = imported(
        "rlboost_jax.environments.adapters.verifiers_harness", extra=EXTRA
    ).register()
    try:
        kind = loaders.env_config_type(taskset, env)
        loaders.taskset_class(taskset)
        fields = {n: f.default for n, f in kind.model_fields.items()}
        roles = [n for n, f in fields.items() if isinstance(f, agents.AgentConfig)]
        if not policy and len(roles) > 1:
            raise ConfigError(
                f"environment.options: policy is '', and {env or taskset!r} has the roles "
                f"{', '.join(roles)}; name the one that is trained"
            )
        role = known("policy", policy, roles) if policy else roles[0]
        options = dict(env_options)
        local = {"harness": {"id": harness}, "runtime": {"type": "subprocess"}}
        options[role] = local | dict(options.get(role, {}))
        data = {**options, "id": env, "taskset": {**taskset_options, "id": taskset}}
        return loaders.resolve_env_config(data), role
    except ConfigError:
        raise
    except Exception as error:  # of a plug-in, which is imported for this
        said = " ".join(str(error).split())
        raise ConfigError(f"environment.options: taskset {taskset!r}: {said}") from None


def _content(task: Any) -> Any:
    """Content of a task, without its place in the taskset."""
    return task.data.model_dump(mode="json", exclude={"idx", "id", "name"}, exclude_none=True)


def _tool(described: Mapping[str, Any]) -> Tool:
    """Tool for the prompt.

    verifiers runs the call itself, in `step`: its tools are part of an episode's state, which is
    made again with them.
    """
    return Tool(
        name=described["name"],
        description=described.get("description", ""),
        parameters=described.get("parameters", {}),
        run=lambda arguments, key: "",
        idempotent=True,
    )
