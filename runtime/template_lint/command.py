"""From a model's files and the flags to a printed report. Loads no weights."""

from __future__ import annotations

from pathlib import Path

from runtime.errors import BadModel
from runtime.lint_template import LintFlags
from runtime.model_files import tokenizer_files
from runtime.text.answer_form import find_answer_form
from runtime.text.template import ChatTemplate, load_template
from runtime.text.tokenizer import ModelFiles, Tokenizer

from .causes import WHAT
from .lint import lint
from .play import Model
from .report import all_hold, as_json, as_text
from .rules import RULES


def lint_template(model: str | None, flags: LintFlags) -> int:
    """Lint, print, and return the exit status: 0 when all holds, else 1.

    Raises:
        ValueError: a flag or a file is wrong, or the template takes no chat at all.
        FileNotFoundError: a directory has no tokenizer.
        BadModel: the model is not there, or has no chat template.
    """
    allowed = _names(flags.allow or "")
    directory, name = tokenizer_files(model)
    report = lint(_model(directory, flags), num_random=flags.random_chats, seed=flags.seed)
    if not report.num_conversations:
        raise ValueError(f"the chat template takes none of the chats: {next(iter(report.not_taken))}")
    show = as_json if flags.json else as_text
    print(show(report, model=flags.chat_template or name, allowed=allowed))
    return 0 if all_hold(report, allowed) else 1


def _names(text: str) -> frozenset[str]:
    """The rules and causes that are no failure."""
    names = frozenset(text.replace(",", " ").split())
    for name in names - RULES.keys() - WHAT.keys():
        raise ValueError(f"--allow takes names of {', '.join([*RULES, *WHAT])}, got {name}")
    return names


def _model(directory: Path, flags: LintFlags) -> Model:
    tokenizer = Tokenizer.load(directory)
    source = load_template(directory, ModelFiles.read(directory).tokenizer_config, flags.chat_template)
    if source is None:
        raise BadModel(f"{directory} has no chat template; name one with --chat-template FILE")
    form = find_answer_form(source, tokenizer, calls=flags.tool_call_parser, thoughts=flags.reasoning_parser)
    return Model(ChatTemplate(source, tokenizer.special_tokens), tokenizer, form)
