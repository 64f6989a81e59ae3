"""Settings of on-policy distillation: the teachers, and how the policy learns from them."""

from dataclasses import dataclass
from typing import Final, Literal, assert_never

from rlboost_jax.settings.model_config import ModelConfig
from rlboost_jax.settings.setting import setting

DistillationForm = Literal["advantage", "loss"]
ScoredBy = Literal["trainer", "servers"]

# In place of a teacher's source in what servers receive.
NOT_SAID: Final = "(known to the trainer)"


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """A teacher: a checkpoint, and the data sets whose responses it scores."""

    source: str  # what model.source may be: a folder, a GGUF file, a name on the hub
    data: tuple[str, ...] = ()  # names of a mixture's data sets; (): all that no other one names
    # As the source's config.json says, filled in where servers score: they cannot read that.
    model: ModelConfig | None = None


@dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """On-policy distillation: the policy's own responses, scored token by token by teachers.

    docs/how-to/distillation.md.
    """

    teachers: tuple[TeacherConfig, ...] = setting(
        (),
        'checkpoints: dictionaries such as {"source": "mine/large"}; (): no distillation',
        note="With `data` a teacher is for these data sets of `data.mixture` alone.",
    )
    form: DistillationForm = setting(
        "advantage",
        "what the KL to the teacher is part of: the advantage of each token, or the loss",
    )
    scored_by: ScoredBy = setting(
        "trainer",
        "who holds the teachers and scores: the trainer's own devices, or servers of the fleet",
        note="Two servers score each response and must find the same bits; both hold the teachers.",
    )
    weight: float = setting(
        1.0,
        "factor of log(teacher / policy) in each token's advantage, or of the KL in the loss",
        above=0,
        may_change="from its step",
    )
    reward_weight: float = setting(
        1.0,
        "factor of the advantage that follows from rewards; 0: the teacher alone teaches",
        at_least=0,
        may_change="from its step",
    )

    @property
    def loss_weight(self) -> float:
        """Factor of the KL to the teachers as a term of the loss; 0 where it is none."""
        if not self.teachers:
            return 0.0
        match self.form:
            case "advantage":
                return 0.0
            case "loss":
                return self.weight
            case _:
                assert_never(self.form)

    @property
    def on_servers(self) -> bool:
        """Whether servers of the fleet hold the teachers."""
        return bool(self.teachers) and self.scored_by == "servers"

    def teacher_of(self, data: str) -> int:
        """Index of the teacher of a data set of the mixture ("" without one); -1: none."""
        named = [place for place, each in enumerate(self.teachers) if data in each.data]
        others = [place for place, each in enumerate(self.teachers) if not each.data]
        return (*named, *others, -1)[0]
