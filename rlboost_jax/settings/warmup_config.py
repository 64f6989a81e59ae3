"""Settings of the supervised warm-up."""

from dataclasses import dataclass

from rlboost_jax.settings.data_config import DataFormat
from rlboost_jax.settings.setting import setting


@dataclass(frozen=True, kw_only=True)
class WarmupConfig:
    """Supervised updates before reinforcement learning.

    From a data set (`source`), docs/how-to/sft.md; or, so that a from-scratch model can start, from
    what the task generates: a skill phase, with worked answers; then a habit phase, in which
    guesses prevail.
    """

    source: str = setting(
        "",
        "data set of prompts and responses: anything that data.source may be; "
        '"": lessons that the task generates',
        note="The settings source_*, *_column, format, subset and split belong to it, the others "
        "to the generated lessons, of which there are none then.",
    )
    format: DataFormat = setting("auto", 'format of the source; "auto": by the ending')
    subset: str = setting("", "configuration of a Hugging Face data set")
    split: str = setting("", 'split of a Hugging Face data set; "": train')
    prompt_column: str = setting(
        "", 'text of the prompt; "": data.template, or data.prompt_column, or prompt'
    )
    response_column: str = setting("", 'text of the response; "": response')
    response_template: str = setting(
        "",
        'template of the response, such as "\\\\boxed{{{answer}}}", with columns in braces; '
        '"": response_column as it is',
    )
    messages_column: str = setting(
        "",
        "a conversation in place of prompt and response, whose assistant turns are the targets; "
        '"": messages, where the source has such a column and no response',
    )
    source_epochs: int = setting(1, "passes over the rows of the source", at_least=1)
    source_batch_tokens: int = setting(
        16_384,
        "positions of an update, rounded up to whole packed batches",
        unit="tokens",
        at_least=1,
    )
    source_learning_rate: float = setting(
        1e-5,
        "peak learning rate of AdamW on the source; rises over a tenth of the updates, 20 at most, "
        "then falls to 0 linearly",
        above=0,
    )

    max_updates: int = setting(
        250, "updates of the skill phase; 0: no generated lessons", unit="updates", at_least=0
    )
    target_loss: float = setting(
        0.13, "loss (moving average) that ends the skill phase", unit="nats/token", at_least=0
    )
    habit_updates: int = setting(32, "updates of the habit phase", unit="updates", at_least=0)
    worked_fraction: float = setting(
        0.75,
        "share of worked answers in the skill phase; the rest are guesses",
        at_least=0,
        at_most=1,
    )
    habit_worked_fraction: float = setting(
        0.12, "share of worked answers in the habit phase", at_least=0, at_most=1
    )
    learning_rate: float = setting(6e-3, "peak learning rate of the skill phase", above=0)
    habit_learning_rate: float = setting(3e-3, "peak learning rate of the habit phase", above=0)

    @property
    def generated(self) -> bool:
        """Whether the model is trained on examples that the task generates."""
        return not self.source and self.max_updates > 0

    @property
    def any(self) -> bool:
        """Whether there is any supervised update."""
        return self.generated or bool(self.source)
