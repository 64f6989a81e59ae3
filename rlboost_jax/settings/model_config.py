"""Settings of the model: one decoder, and what of it is trained."""

from dataclasses import dataclass, field
from typing import Final, Literal

from rlboost_jax.settings.huggingface.families import FAMILIES
from rlboost_jax.settings.setting import setting

Dtype = Literal["float32", "bfloat16", "float16"]
RopeScaling = Literal["", "linear", "llama3", "yarn"]
Activation = Literal["silu", "gelu_tanh"]

# Matrices of a layer, as Hugging Face calls them, that an adapter can be added to.
ATTENTION_TARGETS: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
LORA_TARGETS: Final = (*ATTENTION_TARGETS, "gate_proj", "up_proj", "down_proj")
LAYERS: Final = "layers"  # of the parameters: leaves that have all layers on their first axis
STACKED: Final = f"{LAYERS}."  # begins the dotted names of these


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters: with a rank above 0 they are all that is trained; see docs/how-to/lora.md.

    The model itself stays as it begins, in `model.dtype`, and servers fetch it once.
    """

    source: str = setting(
        "",
        'adapter to begin with, in PEFT\'s format: folder, or "owner/name[@revision]" on the hub',
        note="rank, alpha and targets are then the adapter's.",
    )
    rank: int = setting(
        0, "rank of the adapters; 8 to 64 are usual; 0: all parameters are trained", at_least=0
    )
    alpha: float = setting(32.0, "an adapter's product counts alpha / rank", above=0)
    targets: tuple[str, ...] = setting(LORA_TARGETS, "matrices of each layer that have an adapter")

    @property
    def scale(self) -> float:
        """Factor of an adapter's product."""
        return self.alpha / self.rank


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One decoder; `settings/huggingface/` says which checkpoints can be described by it."""

    source: str = setting(
        "",
        'checkpoint to begin with: folder, .gguf file, or "owner/name[@revision]" on the hub',
        note="A folder is in Hugging Face's format. All other fields of the model but dtype and "
        "lora are then read from its config.json, or the file's header, whatever they are set to.",
        may_change="at once",
    )
    family: str = setting(
        "qwen3",
        "Hugging Face's model type, under which it is exported",
        choices=tuple(FAMILIES),
    )
    vocab_size: int = setting(
        112, "entries of the vocabulary; at least the tokenizer's", at_least=1
    )
    embed_dim: int = setting(128, "width of the residual stream", at_least=1)
    num_layers: int = setting(2, "transformer blocks", at_least=1)
    num_query_heads: int = setting(4, "attention heads", at_least=1)
    num_key_heads: int = setting(2, "heads of keys and values; divides num_query_heads", at_least=1)
    head_dim: int = setting(32, "width of a head; even", at_least=2)
    hidden_dim: int = setting(256, "width of the gated feed-forward layer", at_least=1)
    attention_bias: bool = setting(False, "query, key and value have a bias (Qwen2.5)")
    output_bias: bool = setting(False, "attention's output has a bias")
    qk_norm: bool = setting(True, "queries and keys are normalised per head (Qwen3, Gemma 3)")
    query_scalar: float = setting(0.0, "scores are divided by its root; 0: head_dim", at_least=0)
    attention_soft_cap: float = setting(
        0.0, "scores become cap * tanh(score / cap) (Gemma 2); 0: none", at_least=0
    )
    final_soft_cap: float = setting(
        0.0, "logits become cap * tanh(logit / cap) (Gemma 2); 0: none", at_least=0
    )
    sliding_window: int = setting(
        0, 'tokens that a layer "L" sees, its own included', unit="tokens", at_least=0
    )
    attention_pattern: str = setting(
        "G",
        'a letter per layer, repeated: "G" sees all before, "L" a window',
        note='Gemma 3 has "LLLLLG", Mistral "L".',
    )
    rope_theta: float = setting(10_000.0, "base of the rotary frequencies", above=0)
    local_rope_theta: float = setting(
        0.0, 'base for layers "L", whose positions are then not scaled; 0: rope_theta', at_least=0
    )
    rope_scaling: RopeScaling = setting("", "how positions are scaled for longer contexts")
    rope_factor: float = setting(1.0, "divisor of scaled frequencies", above=0)
    rope_low_frequency_factor: float = setting(
        1.0, "llama3, yarn: wavelengths above original / this are scaled", above=0
    )
    rope_high_frequency_factor: float = setting(
        4.0, "llama3, yarn: wavelengths below original / this are not scaled", above=0
    )
    rope_original_positions: int = setting(
        8192, "llama3, yarn: context before the scaling", unit="tokens", above=0
    )
    rope_attention_factor: float = setting(
        1.0, "yarn: rotated queries and keys are multiplied by it", above=0
    )
    norm_epsilon: float = setting(1e-6, "constant added to the mean square in RMSNorm", above=0)
    norm_offset: bool = setting(False, "norms multiply by 1 + scale (Gemma)")
    post_norms: bool = setting(False, "norms also after attention and feed-forward layer (Gemma)")
    activation: Activation = setting("silu", "activation function of the feed-forward gate")
    scale_embeddings: bool = setting(
        False, "embeddings are multiplied by the root of embed_dim (Gemma)"
    )
    tie_embeddings: bool = setting(False, "the output head is the input embedding")
    num_experts: int = setting(
        0, "feed-forward layers to choose from; 0: one, for all tokens", at_least=0
    )
    experts_per_token: int = setting(0, "the most probable experts of each token", at_least=0)
    expert_dim: int = setting(0, "width of an expert", at_least=0)
    normalize_experts: bool = setting(True, "weights of a token's experts add up to 1")
    dtype: Dtype = setting(
        "float32",
        "type of activations in learner and engine",
        note="What is trained is float32 in the learner.",
    )
    lora: LoraConfig = field(default_factory=LoraConfig)

    def adapts(self, target: str) -> bool:
        """Whether the matrices of that name have adapters."""
        return self.lora.rank > 0 and target in self.lora.targets

    @property
    def layer_windows(self) -> tuple[int, ...]:
        """Tokens that each layer sees; 0: all before."""
        pattern = self.attention_pattern
        return tuple(
            self.sliding_window if pattern[i % len(pattern)] == "L" else 0
            for i in range(self.num_layers)
        )

    @property
    def attention_scale(self) -> float:
        """Factor of the scores."""
        return float((self.query_scalar or self.head_dim) ** -0.5)
