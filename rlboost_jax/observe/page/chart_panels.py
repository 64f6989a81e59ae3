"""Panels drawn of a run, as data: the live page and the report draw them with the same code.

A panel is a title, a caption and fields; a field is one plot with its series. A series without a
number in any row is left out, and so are a field and a panel without a series.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rlboost_jax.observe.page.panel_records import (
    AMBER,
    BLUE,
    PALE,
    QUIET,
    RED,
    TEAL,
    VIOLET,
    Field,
    Format,
    Panel,
    Series,
)
from rlboost_jax.observe.page.points import (
    NOT_DURABLE,
    PREEMPTIBLE_RATE,
    RESERVED_RATE,
    REWARD_PREFIX,
    SPENT,
)
from rlboost_jax.settings.run_config import RunConfig


def panels(config: RunConfig, *, alone: bool = False) -> list[dict[str, Any]]:
    """All panels, for JSON.

    Args:
        alone: the points have an estimate for the reserved devices alone (`cost.py`).
    """
    chosen = [
        _learning(config),
        _throughput(),
        _updates(config),
        _responses(config),
        _environment(),
        _drafts(),
        _parts(),
        _lag(),
        _waits(),
        _checkpoints(config),
        _cost(config, alone=alone),
    ]
    return [asdict(panel) for panel in chosen]


def _learning(config: RunConfig) -> Panel:
    return Panel(
        id="learning",
        title="Learning",
        caption=_whose_tokens(config.algorithm.lag),
        fields=(
            Field(
                title="reward, accuracy",
                right_title="tokens per response",
                top=1.0,
                series=(
                    Series(
                        key="response_length_mean", name="response length", colour=PALE, right=True
                    ),
                    Series(key="reward_mean", name="reward, training prompts", colour=BLUE),
                    Series(
                        key="accuracy",
                        name="accuracy, held-out prompts",
                        colour=TEAL,
                        kind="dots",
                        x="version",  # of that policy
                    ),
                ),
            ),
        ),
    )


def _updates(config: RunConfig) -> Panel:
    return Panel(
        id="updates",
        title="Updates",
        caption="Entropy that falls towards 0 says that the policy stops exploring; the "
        f"gradient's norm is taken before it is clipped at {config.learner.max_gradient_norm:g}.",
        fields=(
            _field("nats per token", ("entropy", "entropy", BLUE), ("kl", "KL to reference", RED)),
            _field("gradient norm", ("gradient_norm", "gradient norm", TEAL)),
            _field("clipped tokens", ("clip_fraction", "clipped tokens", AMBER), format="percent"),
            _field("learning rate", ("learning_rate", "learning rate", VIOLET)),
        ),
    )


def _responses(config: RunConfig) -> Panel:
    shares = (
        Series(key="truncated_fraction", name="cut off", colour=RED),
        Series(key="uniform_groups_fraction", name="groups of equal rewards", colour=AMBER),
    )
    return Panel(
        id="responses",
        title="Responses",
        caption="Responses are cut off at "
        f"{config.sampling.max_response_tokens:,} tokens. Where all rewards of a group are "
        "equal, a comparison within the group has nothing to teach.",
        fields=(
            _field(
                "tokens",
                ("response_length_mean", "mean length", BLUE),
                ("response_length_max", "longest", PALE),
            ),
            Field(title="share", format="percent", top=1.0, series=shares),
        ),
    )


def _environment() -> Panel:
    return Panel(
        id="environment",
        title="Environment",
        caption="Turns and sequences of an episode; calls of tools in the step, and of these those "
        "that failed; what environments took, all episodes together, and the share of responses "
        "that waited for them. An episode that is left out has failed for reasons of its own.",
        fields=(
            _field(
                "of an episode",
                ("turns_mean", "turns", BLUE),
                ("sequences_mean", "sequences", PALE),
            ),
            _field(
                "of the step",
                ("tool_calls", "tool calls", TEAL),
                ("tool_failures", "failed", RED),
                ("episodes_left_out", "episodes left out", AMBER),
            ),
            _field("seconds", ("environment_seconds", "in environments", VIOLET), format="seconds"),
            Field(
                title="share",
                format="percent",
                top=1.0,
                series=(Series(key="parked_share", name="waiting", colour=AMBER),),
            ),
        ),
    )


def _drafts() -> Panel:
    return Panel(
        id="drafts",
        title="Drafts",
        caption="Tokens that engines drafted and verified in free rows of decode steps, those of "
        "them that were right, and the decode steps that these saved, all engines together, with "
        "about what these would have cost.",
        fields=(
            _field(
                "tokens",
                ("tokens_drafted", "drafted", PALE),
                ("drafts_accepted", "accepted", BLUE),
            ),
            _field("decode steps", ("decode_steps_saved", "saved", TEAL)),
            _field("dollars", ("dollars_saved", "saved", TEAL), format="dollars"),
        ),
    )


def _lag() -> Panel:
    return Panel(
        id="lag",
        title="Lag",
        caption="Of the policy that was trained to the version that had sampled: the mean "
        "ratio of a token's probabilities, the share of tokens that were clipped, and the "
        "KL from that version.",
        fields=(
            Field(
                title="ratio, versions",
                right_title="nats per token",
                series=(
                    Series(key="ratio_mean", name="ratio", colour=BLUE),
                    Series(key="lag", name="versions between", colour=PALE, unless_zero=True),
                    Series(key="behaviour_kl", name="KL, nats per token", colour=RED, right=True),
                ),
            ),
        ),
    )


def _parts() -> Panel:
    return Panel(
        id="parts",
        title="What the reward is made of",
        caption="The mean of each part over the responses of a step.",
        fields=(
            Field(
                title="mean of the responses",
                series=(Series(key=REWARD_PREFIX, name="", colour=BLUE),),
            ),
        ),
    )


def _throughput() -> Panel:
    return Panel(
        id="throughput",
        title="Tokens per second",
        caption="Tokens sampled on reserved and on preemptible devices, over the whole "
        "duration of the step.",
        fields=(
            Field(
                title="tokens per second",
                series=(
                    Series(key=RESERVED_RATE, name="reserved", colour=VIOLET, kind="stack"),
                    Series(key=PREEMPTIBLE_RATE, name="preemptible", colour=BLUE, kind="stack"),
                ),
            ),
        ),
    )


def _waits() -> Panel:
    return Panel(
        id="waits",
        title="Waits and the seeding window",
        caption="The window, in which the reserved devices generate before they train, is "
        "moved until neither side waits for the other.",
        fields=(
            Field(
                title="seconds",
                format="seconds",
                series=(
                    Series(key="step_seconds", name="whole step", colour=QUIET),
                    Series(key="train_wait_seconds", name="learner waits for groups", colour=AMBER),
                    Series(
                        key="remote_wait_seconds",
                        name="servers wait for the learner",
                        colour=BLUE,
                    ),
                    Series(key="train_seconds", name="learner busy", colour=TEAL),
                    Series(
                        key="seeding_window_seconds",
                        name="seeding window",
                        colour=VIOLET,
                        dash=True,
                    ),
                ),
            ),
        ),
    )


def _checkpoints(config: RunConfig) -> Panel:
    every, most = config.checkpoint.every_steps, config.checkpoint.max_behind
    return Panel(
        id="checkpoints",
        title="Not durable yet",
        caption="Steps that would be done again if all power failed at the end of this one: those "
        f"after the newest durable checkpoint. One is due every {every} "
        f"{'step' if every == 1 else 'steps'}; at {most + every - 1} training waits for the disk.",
        fields=(_field("steps", (NOT_DURABLE, "after the durable checkpoint", AMBER)),),
    )


def _cost(config: RunConfig, *, alone: bool) -> Panel:
    spent = Series(key=SPENT, name="this run", colour=PALE if alone else TEAL, unless_zero=True)
    forecast = Series(
        key="cost_forecast_dollars",
        name="forecast, whole run",
        colour=QUIET,
        dash=True,
        unless_zero=True,
    )
    compared = (
        Series(key="alone_dollars", name="steps, reserved alone (estimate)", colour=AMBER),
        Series(key="own_dollars", name="steps of this run", colour=TEAL),
    )
    series = (*compared, spent, forecast) if alone else (spent, forecast)
    return Panel(
        id="cost",
        title="Cost",
        caption=f"At ${config.fleet.reserved_price_per_hour:.2f} an hour reserved and "
        f"${config.fleet.price_per_hour:.2f} for each preemptible server, which are settings. "
        + _what_is_compared(config),
        fields=(Field(title="dollars", format="dollars", series=series),),
    )


def pretends(config: RunConfig) -> bool:
    """Whether the fleet ran on the learner's host but is billed as if it were rented."""
    return config.fleet.provider == "local"


def _what_is_compared(config: RunConfig) -> str:
    if pretends(config):
        return (
            "These prices are pretended: the fleet shared one host with the learner and cost "
            "nothing by itself, so it is not compared with reserved devices alone."
        )
    return (
        "Of this run the bill has start, warm-up and what lies between steps. The steps alone, "
        "from their first request to their update, are compared with an estimate of the same "
        "at the speed that the reserved devices showed in their seeding windows. The estimate has "
        "no waits, be it for rewards, for environments or for a host that is busy."
    )


def _whose_tokens(lag: int) -> str:
    weights = "the weights being updated"
    if lag:
        weights = f"those of one version, {lag} update{'s' * (lag > 1)} of the policy before"
    return (
        f"Every token of an update was sampled from {weights}, whatever became of the server that "
        "sampled it."
    )


def _field(title: str, *series: Sequence[str], format: Format = "number") -> Field:
    return Field(
        title=title,
        format=format,
        series=tuple(
            Series(
                key=key, name=name, colour=colour, unless_zero=key in ("kl", "episodes_left_out")
            )
            for key, name, colour in series
        ),
    )
