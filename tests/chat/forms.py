"""Chat templates of the forms that models have, written for these tests, and what ends a turn.

They are no model's own. Those that the package trl ships are in `test_trl_templates.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """Attributes:
    stops: the first is the tokenizer's end token.
    special: besides these, and the beginning mark.
    added: tokens that are not special.
    """

    template: str
    stops: tuple[str, ...]
    special: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


TOOLS_OF_CHATML = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
{{- 'Tools:' }}{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}
{{- '\\nCall one in <tool_call></tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>system\\nHelp.<|im_end|>\\n' }}{% endif %}
"""
RESULTS_OF_CHATML = """\
{%- elif m.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- endif %}
{%- endfor %}
"""
CALLS_OF_CHATML = """\
{%- for call in m.tool_calls or [] %}{{ '\\n<tool_call>\\n{"name": "' + call.function.name }}
{{- '", "arguments": ' }}{{ call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\\n' }}
"""

# One system prompt or another, several results in one block, as Qwen2.5 has it.
CHATML = (
    TOOLS_OF_CHATML
    + """\
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' + m.content }}
"""
    + CALLS_OF_CHATML
    + RESULTS_OF_CHATML
    + """\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
)

# Thinking stays in turns since the last question, as Qwen3 has it; empty marks in the newest.
THINKING_CHATML = (
    TOOLS_OF_CHATML
    + """\
{%- set seen = namespace(asked=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set seen.asked = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}
{%- if loop.index0 > seen.asked and (loop.last or m.reasoning_content) %}
{{- '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}{% endif %}
{{- m.content }}
"""
    + CALLS_OF_CHATML
    + RESULTS_OF_CHATML
    + """\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}{% endif %}
"""
)

# Thinking is opened for the policy and never written again, as DeepSeek's distilled models do.
PREFILLED = """\
{{- bos_token }}{% for m in messages %}
{%- if m.role == 'user' %}{{ '<|User|>' + m.content }}
{%- elif m.role == 'assistant' %}{{ '<|Assistant|>' + m.content + '<|eos|>' }}
{%- endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{% set first, rest = messages[0].content, messages[1:] %}
{%- else %}{% set first, rest = '', messages %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools %}{{ 'Environment: ipython\\n' }}{% endif %}
{{- 'Today Date: ' + strftime_now('%d %b %Y') + '\\n\\n' + first + '<|eot_id|>' }}
{%- for m in rest %}
{%- if m.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + (m.content | tojson) + '<|eot_id|>' }}
{%- elif m.tool_calls %}
{%- if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{%- set call = m.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", ' }}
{{- '"parameters": ' }}{{ call.arguments | tojson }}{{ '}' }}
{{- '<|eom_id|>' if builtin_tools is defined else '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

GEMMA = """\
{{- bos_token }}{% for m in messages %}
{%- if m.role == 'system' %}{{ raise_exception('no system prompt') }}{% endif %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('take turns') }}{% endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}
{{- m.content | trim + '<end_of_turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
"""

# Tools stand before the last question, so another question moves them. Ids have nine characters.
MISTRAL = """\
{{- bos_token }}
{%- set seen = namespace(asked=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set seen.asked = loop.index0 %}{% endif %}
{%- if m.role == 'system' %}{{ raise_exception('no system prompt') }}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and loop.index0 == seen.asked %}
{{- '[AVAILABLE_TOOLS] ' }}{{ tools | tojson }}{{ '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST] ' + m.content + '[/INST]' }}
{%- elif m.role == 'tool' %}
{%- if m.tool_call_id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}
{{- '[TOOL_RESULTS] {"content": ' }}{{ m.content | tojson }}
{{- ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- elif m.tool_calls %}{{ '[TOOL_CALLS] [' }}
{%- for call in m.tool_calls %}{{ ', ' if not loop.first }}{{ '{"name": "' + call.function.name }}
{{- '", "arguments": ' }}{{ call.function.arguments | tojson }}{{ ', "id": "' + call.id + '"}' }}
{%- endfor %}{{ ']' + eos_token }}
{%- else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}
"""

# Tools stand before the first question and stay there; calls have marks in place of a list.
MISTRAL_LATER = """\
{{- bos_token }}{% set shown = namespace(tools=false) %}
{%- for m in messages %}
{%- if m.role == 'system' %}{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}
{%- elif m.role == 'user' %}
{%- if tools and not shown.tools %}
{{- '[AVAILABLE_TOOLS]' }}{{ tools | tojson }}{{ '[/AVAILABLE_TOOLS]' }}
{%- set shown.tools = true %}{% endif %}
{{- '[INST]' + m.content + '[/INST]' }}
{%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}
{%- else %}{{ m.content }}
{%- for call in m.tool_calls or [] %}{{ '[TOOL_CALLS]' + call.function.name + '[ARGS]' }}
{{- call.function.arguments | tojson }}{% endfor %}{{ eos_token }}
{%- endif %}{% endfor %}
"""

# A turn is messages in channels; what was the last is written otherwise once another follows.
HARMONY = """\
{%- for m in messages %}
{%- if m.role == 'assistant' and loop.last and not add_generation_prompt %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + (m.thinking or '') + '<|end|>' }}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|return|>' }}
{%- elif m.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}
{%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}
"""

# A turn ends with the mark of the next speaker.
GLM = """\
[gMASK]<sop>{% for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|observation|>' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- else %}{{ '<|' + m.role + '|>\\n' + m.content }}
{%- for call in m.tool_calls or [] %}{{ '\\n<tool_call>' + call.function.name + '\\n' }}
{%- for key, value in call.function.arguments.items() %}{{ '<arg_key>' + key + '</arg_key>\\n' }}
{{- '<arg_value>' }}{{ value if value is string else value | tojson }}{{ '</arg_value>\\n' }}
{%- endfor %}{{ '</tool_call>' }}{% endfor %}
{%- endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}
"""

# No tools and no default: the shortest there is. Calls are part of a turn's text.
PLAIN = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

CHATML_MARKS = {
    "stops": ("<|im_end|>", "<|endoftext|>"),
    "special": ("<|im_start|>",),
    "added": ("<tool_call>", "</tool_call>", "<think>", "</think>"),
}
LLAMA3_MARKS = ("<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>")
MISTRAL_MARKS = ("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
MISTRAL_MARKS += ("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CONTENT]", "[CALL_ID]", "[ARGS]")
MISTRAL_MARKS += ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]")

FORMS = {
    "chatml": Form(CHATML, **CHATML_MARKS),
    "thinking": Form(THINKING_CHATML, **CHATML_MARKS),
    "plain": Form(PLAIN, **CHATML_MARKS),
    "prefilled": Form(
        PREFILLED, ("<|eos|>",), ("<|User|>", "<|Assistant|>"), ("<think>", "</think>")
    ),
    "llama3": Form(LLAMA3, ("<|eot_id|>", "<|eom_id|>"), LLAMA3_MARKS),
    "gemma": Form(GEMMA, ("<end_of_turn>", "<eos>"), ("<start_of_turn>",)),
    "mistral": Form(MISTRAL, ("</s>",), MISTRAL_MARKS),
    "mistral_later": Form(MISTRAL_LATER, ("</s>",), MISTRAL_MARKS),
    "glm": Form(
        GLM,
        ("<|endoftext|>", "<|user|>", "<|observation|>"),
        ("[gMASK]", "<sop>", "<|system|>", "<|assistant|>"),
        ("<tool_call>", "</tool_call>"),
    ),
}
