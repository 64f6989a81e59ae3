"""Settings of environments: what answers a policy's turns."""

from dataclasses import dataclass
from typing import Any, Literal

from rlboost_jax.settings.setting import setting

OnFailure = Literal["leave_out", "stop"]
OnDivergence = Literal["restart", "stop"]
ToolFormat = Literal["auto", "hermes", "llama3", "mistral", "json", "tagged"]
Thinking = Literal["keep", "drop"]
UnstableTemplate = Literal["refuse", "new_sequence"]
Isolation = Literal["shared", "episode"]


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """What answers the policy's turns; see docs/how-to/environments.md."""

    name: str = setting(
        "",
        'built in (rlboost_jax/environments/factories.py), or "package.module:factory"; "": none',
    )
    options: dict[str, Any] = setting({}, "arguments of the factory, by name")
    workers: int = setting(
        2,
        "processes on the trainer's host that environments run in",
        unit="processes",
        note="0 only with `listen`: then all of them are of other hosts.",
        at_least=0,
        may_change="at once",
    )
    listen: str = setting(
        "",
        'HOST:PORT where hosts of environments dial in (`rlboost environments`); "": nowhere',
        note="The port is fixed, for they dial it again when the trainer has been away.",
    )
    isolation: Isolation = setting(
        "shared",
        "whether episodes share a process",
        note='"episode" is for libraries that draw from a random state of the whole process.',
    )
    max_turns: int = setting(
        8, "turns of an episode; after the last it is over", unit="turns", at_least=1
    )
    turn_tokens: int = setting(
        0,
        "most tokens sampled in one turn; 0: what sampling.max_response_tokens leaves",
        at_least=0,
    )
    max_given_tokens: int = setting(
        0,
        "room in a slot for what an environment says after the first prompt",
        note="An episode is over where an observation does not fit.",
        at_least=0,
    )
    time_limit_seconds: float = setting(
        60.0,
        "time limit of one step or reset; tools have limits of their own",
        above=0,
        may_change="at once",
    )
    episode_seconds: float = setting(
        0.0,
        "time in the environment after which an episode is over with its turn; 0: any",
        at_least=0,
        may_change="from its step",
    )
    attempts: int = setting(
        3,
        "attempts at an episode whose environment fails or is lost",
        at_least=1,
        may_change="at once",
    )
    on_failure: OnFailure = setting(
        "leave_out",
        "after these attempts: leave the episode out of its group, or end the run",
        may_change="from its step",
    )
    on_divergence: OnDivergence = setting(
        "restart",
        "where an environment that is made again answers otherwise: begin the episode again, or "
        "end the run",
        may_change="from its step",
    )
    tool_format: ToolFormat = setting(
        "auto", 'how a turn calls tools; "auto": as the chat template has it'
    )
    template_options: dict[str, Any] = setting(
        {}, 'options of the chat template, such as {"enable_thinking": False}'
    )
    thinking: Thinking = setting("keep", "thinking of earlier turns stays in the prompt, or goes")
    unstable_template: UnstableTemplate = setting(
        "refuse",
        "where a chat template does not continue what was sampled: refuse it, or begin another "
        "sequence there",
    )
    memory_mb: int = setting(
        1024,
        "memory that a worker may allocate beyond what its modules take",
        at_least=1,
        may_change="from its step",
    )
    chaos_kills_per_minute: float = setting(
        0.0,
        "SIGKILL of a worker at random times, to see that nothing depends on it",
        at_least=0,
        may_change="at once",
    )
