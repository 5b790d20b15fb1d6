"""Chat templates in the ways of well-known models, written for these tests, with the special tokens that they use."""

from __future__ import annotations

import tokenizers

from runtime.template_lint.play import Model
from runtime.text.answer_form import find_answer_form
from runtime.text.template import ChatTemplate
from runtime.text.tokenizer import ModelFiles, Tokenizer
from tests.fakes import byte_tokenizer

CHATML = ("<|im_start|>", "<|im_end|>")
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>")
MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
MISTRAL += ("[TOOL_RESULTS]", "[/TOOL_RESULTS]")
GEMMA = ("<bos>", "<start_of_turn>", "<end_of_turn>")

_HERMES_TOOLS = """
{%- if tools or (messages and messages[0].role == 'system') -%}
<|im_start|>system
{{ messages[0].content + '\\n\\n' if messages[0].role == 'system' and tools else
   (messages[0].content if messages[0].role == 'system' else '') }}
{%- if tools %}{{ '# Tools\\n<tools>' }}{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\nCall them as <tool_call>{"name": ..., "arguments": ...}</tool_call>' }}{% endif %}
{{- '<|im_end|>\\n' }}
{%- endif -%}
"""
_HERMES_CALLS = """
{%- for call in message.tool_calls or [] -%}
{{ '\\n' if loop.index0 or content else '' }}{{ '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}
{%- endfor -%}
"""

HERMES = (
    _HERMES_TOOLS
    + """
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- set content = message.content %}
{{- '<|im_start|>assistant\\n' + content }}"""
    + _HERMES_CALLS
    + """
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif not (message.role == 'system' and loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
)
"""Everything in its place: nothing is dropped, moved or trimmed."""

HERMES_WITHOUT_CALLS = HERMES.replace(_HERMES_CALLS, "").replace(
    '<tool_call>{"name": ..., "arguments": ...}</tool_call>', "CALLS"
)
"""Leaves out what was called; `CALLS` says how calls are written, and is to be replaced."""

_THINKING = (
    _HERMES_TOOLS
    + """
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- set content = message.content %}
{{- '<|im_start|>assistant\\n' }}
{%- if message.reasoning_content and KEPT %}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- content }}"""
    + _HERMES_CALLS
    + """
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif not (message.role == 'system' and loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""
)
QWEN_3 = _THINKING.replace("KEPT", "loop.index0 > ns.last")
"""Drops the reasoning in front of the last question, and opens an empty thought where none is wanted."""

QWEN_3_WITH_EMPTY_THOUGHTS = QWEN_3.replace(
    "message.reasoning_content and", "(message.reasoning_content or loop.last) and"
).replace("+ message.reasoning_content +", "+ (message.reasoning_content or '') +")
"""As published: an answer without a thought has an empty one while it is the last."""

QWEN_3_PRESERVING = _THINKING.replace("KEPT", "(preserve_thinking or loop.index0 > ns.last)")
ALWAYS_THINKING = _THINKING.replace("KEPT", "true").replace(
    "enable_thinking is defined and not enable_thinking", "false"
)
"""Writes all reasoning, always."""

OPEN_THOUGHT = _THINKING.replace("KEPT", "KEPT_OPEN").replace(
    "{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}",
    "{{- '<think>\\n' }}",
)
DEEPSEEK_R1 = OPEN_THOUGHT.replace("KEPT_OPEN", "false")
"""Begins the answer inside a thought, which the history never has."""

OPEN_ALWAYS = OPEN_THOUGHT.replace("KEPT_OPEN", "true")
"""Begins the answer inside a thought, which stays."""

LLAMA_3 = """
{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}
{%- set has_system = messages[0].role == 'system' %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + date_string + '\\n\\n' }}
{{- (messages[0].content if has_system else '') + '<|eot_id|>' }}
{%- for message in messages %}
{%- if loop.first and tools and not has_system or loop.index0 == 1 and tools and has_system %}
{{- '<|start_header_id|>user<|end_header_id|>\\n\\nRespond in the format ' }}
{{- '{"name": function name, "parameters": dictionary}.\\n\\n' }}
{%- for tool in tools %}{{ tool | tojson(indent=4) + '\\n\\n' }}{% endfor %}
{{- message.content + '<|eot_id|>' }}
{%- elif message.role == 'assistant' and message.tool_calls %}
{%- if message.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson + '}<|eot_id|>' }}
{%- elif message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content + '<|eot_id|>' }}
{%- elif not (message.role == 'system' and loop.first) %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | TRIM + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
"""Has the date in front of everything; `TRIM` is to be replaced."""

MISTRAL_7B = """
{{- bos_token }}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools and message == users[-1] %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST]' + (system + '\\n\\n' if system and message == users[-1] else '') + message.content + '[/INST]' }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS]' + ({'content': message.content, 'call_id': message.tool_call_id} | tojson) + '[/TOOL_RESULTS]' }}
{%- elif message.role == 'assistant' and message.tool_calls %}
{{- '[TOOL_CALLS][' }}
{%- for call in message.tool_calls %}
{{- ', ' if loop.index0 else '' }}
{{- {'name': call.function.name, 'arguments': call.function.arguments, 'id': call.id} | tojson }}
{%- endfor %}{{ ']' + eos_token }}
{%- elif message.role == 'assistant' %}{{ message.content + eos_token }}
{%- elif not loop.first %}{{ raise_exception('system messages come first') }}
{%- endif %}
{%- endfor %}"""
"""Writes tools and the system prompt at the last question, and calls with their ids."""

GEMMA_2 = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
{{- message.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
"""Cuts whitespace off answers."""

GEMMA_2_UNTRIMMED = GEMMA_2.replace(" | trim", "")

LAST_SYSTEM_FIRST = """
{%- set ns = namespace(system='') %}
{%- for message in messages %}{% if message.role == 'system' %}{% set ns.system = message.content %}{% endif %}
{%- endfor %}{{ bos_token + ns.system }}
{%- for message in messages if message.role != 'system' %}
{{- '<start_of_turn>' + message.role + '\\n' + message.content + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>assistant\\n' }}{% endif %}"""
"""Only the last system message counts, and it stands first, as DeepSeek R1 has it."""

PLAIN_LINES = """
{%- for message in messages %}{{ message.role + ': ' + message.content + '\\n\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"""
"""Without any special token."""


def model_of(source: str, special: tuple[str, ...], *, eos: str, joined: str | None = None) -> Model:
    """The template with a tokenizer of bytes, of these special tokens and of the text `joined`."""
    backend: tokenizers.Tokenizer = byte_tokenizer()
    backend.add_special_tokens(list(special))
    if joined is not None:
        backend.add_tokens([tokenizers.AddedToken(joined, special=False, normalized=False)])
    files = ModelFiles(
        tokenizer_config={"eos_token": eos, "bos_token": special[0] if special else ""},
        model_config={},
        generation_config={},
    )
    tokenizer = Tokenizer(backend, files)
    form = find_answer_form(source, tokenizer, calls="auto", thoughts="auto")
    return Model(ChatTemplate(source, tokenizer.special_tokens), tokenizer, form)
