"""Fields of a call that would change what is sampled: all but a harmless value is refused."""

from collections.abc import Mapping
from typing import Any, Final

from rlboost_jax.gateway.api_errors import invalid
from rlboost_jax.gateway.unread import UNSET

# What would change what is sampled, with the only values that it may have.
FIXED: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "logit_bias": (),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "min_p": (0, 0.0),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "functions": (),
    "function_call": (),
    "modalities": (["text"],),
    "audio": (),
    "prompt_logprobs": (0,),
    "echo": (False,),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "chat_template": (),
    "chat_template_kwargs": (),
    "features": (),
    "content_parts": (),
    "structured_outputs": (),
    "bad_words": (),
    "allowed_token_ids": (),
    # Other servers' names of the same.
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
    **dict.fromkeys(("json_schema", "regex", "ebnf", "grammar", "stop_regex", "documents"), ()),
    **dict.fromkeys(("logits_processors", "custom_logit_processor", "lora_path"), ()),
    **dict.fromkeys(("thinking_token_budget", "truncate_prompt_tokens", "prompt_embeds"), ()),
    **dict.fromkeys(("repeat_penalty", "length_penalty", "typical_p", "tfs_z"), (1, 1.0)),
    **dict.fromkeys(("top_a", "mirostat", "xtc_probability", "dry_multiplier"), (0, 0.0)),
    **dict.fromkeys(("stop_sequences", "structural_tag", "format", "penalty_alpha"), ()),
    **dict.fromkeys(("dynatemp_range", "smoothing_factor", "no_repeat_ngram_size"), (0, 0.0)),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), (0, 0.0)),
    **dict.fromkeys(("num_beams", "encoder_repetition_penalty"), (1, 1.0)),
    "include_stop_str_in_output": (False,),
}


def refuse(value: Mapping[str, Any]) -> None:
    """Raise ApiError for the first of these fields that has another value."""
    for name, allowed in FIXED.items():
        given = value.get(name)
        if given in UNSET or any(given == each for each in allowed):
            continue
        only = f"only {allowed[0]!r} is taken" if allowed else "leave it out"
        raise invalid(f"{name} is not supported; {only}", name, code="unsupported_parameter")
