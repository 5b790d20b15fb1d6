from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from runtime.text.template import ChatTemplate, load_template, template_variables
from tests.fakes import CHAT_TEMPLATE, write_model_dir
from wire.errors import Refused

CHATML = (
    "{% for message in messages %}\n    {% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GENERATION = (
    "{%- for message in messages %}\n  {%- if message.role == 'assistant' %}\n"
    "    {%- generation %}{{ message.content }}{{ eos_token }}{%- endgeneration %}\n"
    "  {%- else %}[{{ message | tojson }}]{%- endif %}\n  {%- if loop.index > 5 %}{% break %}{% endif %}\n{%- endfor %}"
)
VARIABLES = (
    "{{ bos_token }}{% if thinking is defined and thinking %}T{% endif %}{% if tools %}X{% endif %}"
    "{% for m in messages %}{{ m['role'] | upper }}: {{ m['content'] | trim }}\n{% endfor %}"
)
CHATS = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "Sei höflich <&>"}, {"role": "user", "content": " 日本 \n"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> transformers.PreTrainedTokenizerFast:
    directory = write_model_dir(tmp_path_factory.mktemp("model"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )


@pytest.mark.parametrize("source", [CHATML, GENERATION, VARIABLES, CHAT_TEMPLATE])
@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("with_prompt", [True, False])
def test_a_prompt_equals_that_of_transformers(
    reference: transformers.PreTrainedTokenizerFast, source: str, messages: list[dict[str, object]], with_prompt: bool
) -> None:
    ours = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(
        messages, add_generation_prompt=with_prompt, variables={"thinking": True}
    )
    theirs = reference.apply_chat_template(
        messages, chat_template=source, tokenize=False, add_generation_prompt=with_prompt, thinking=True
    )
    assert ours == theirs


@pytest.mark.parametrize("source", [CHATML, VARIABLES, CHAT_TEMPLATE])
@pytest.mark.parametrize("begun", ["I am", "I am ", " so"])
def test_a_continued_message_equals_that_of_transformers(
    reference: transformers.PreTrainedTokenizerFast, source: str, begun: str
) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": begun}]
    ours = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render_open(messages, variables={})
    theirs = reference.apply_chat_template(messages, chat_template=source, tokenize=False, continue_final_message=True)
    assert ours == theirs


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no system message, please') }}",
        "{{ messages[5]['content'] + 'x' }}",
        "{{ messages[0]['content'] + 5 }}",
        "{{ 1 // (messages | length - 1) }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages | no_such_filter_at_run_time if false else undefined_function() }}",
    ],
)
def test_a_template_that_fails_refuses_the_request(source: str) -> None:
    try:
        template = ChatTemplate(source, {})
    except ValueError:
        return
    with pytest.raises(Refused, match="chat template"):
        template.render(CHATS[0], add_generation_prompt=True, variables={})


@pytest.mark.parametrize(
    "source",
    [
        "{% if messages[0]['role'] == 'ipython' %}x{% endif %}",
        "{% for m in messages %}{{ 'x' if m.role in ['ipython', 'y'] }}{% endfor %}",
        "{% set role = messages[0].role %}{% if role != 'ipython' %}x{% endif %}",
    ],
)
def test_a_role_that_a_template_knows_is_allowed_beside_the_usual_ones(source: str) -> None:
    roles = ChatTemplate(source, {}).roles
    assert "ipython" in roles
    assert {"system", "developer", "user", "assistant", "tool", "function"} < roles
    assert "role" not in roles


def test_what_a_template_compares_other_things_with_is_no_role() -> None:
    assert "x" not in ChatTemplate("{% if messages[0]['content'] == 'x' %}{% endif %}", {}).roles


def test_a_template_with_a_syntax_error_names_its_line() -> None:
    with pytest.raises(ValueError, match="line 2"):
        ChatTemplate("x\n{% if %}", {})


def test_the_server_s_variables_can_not_be_set_by_a_request() -> None:
    assert template_variables({"enable_thinking": False}) == {"enable_thinking": False}
    with pytest.raises(Refused, match="messages"):
        template_variables({"messages": []})


def test_the_flag_comes_before_the_file_and_the_file_before_the_configuration(tmp_path: Path) -> None:
    assert load_template(tmp_path, {}, None) is None
    config = {"chat_template": [{"name": "default", "template": "from config"}, {"name": "rag", "template": "x"}]}
    assert load_template(tmp_path, config, None) == "from config"
    (tmp_path / "chat_template.jinja").write_text("from file")
    assert load_template(tmp_path, config, None) == "from file"
    (tmp_path / "mine").write_text("from flag")
    assert load_template(tmp_path, config, str(tmp_path / "mine")) == "from flag"
    with pytest.raises(ValueError, match="--chat-template"):
        load_template(tmp_path, config, str(tmp_path / "absent"))
