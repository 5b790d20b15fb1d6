"""`axil completion SHELL`: a script that completes commands and flags, made out of the command's own parser."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SHELLS = ("bash", "zsh", "fish")

_FILES = ("FILE", "DIRECTORY")
"""What help calls the value of a flag that names a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    names: tuple[str, ...]
    help: str
    has_value: bool
    choices: tuple[str, ...]
    is_file: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command:
    name: str
    help: str
    options: tuple[_Option, ...]
    words: tuple[str, ...]


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for `shell`, one of `SHELLS`."""
    commands = list(_commands(parser))
    match shell:
        case "bash":
            lines = _bash(commands)
        case "zsh":
            lines = _zsh(commands)
        case _:
            lines = _fish(commands)
    return "\n".join(lines) + "\n"


def _commands(parser: argparse.ArgumentParser) -> Iterator[_Command]:
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    helps = {action.dest: action.help or "" for action in subparsers._choices_actions}
    for name, command in subparsers.choices.items():
        positionals = [action for action in command._actions if not action.option_strings]
        yield _Command(
            name=name,
            help=helps.get(name, ""),
            options=tuple(_option(action) for action in command._actions if action.option_strings),
            words=tuple(str(choice) for action in positionals for choice in action.choices or ()),
        )


def _option(action: argparse.Action) -> _Option:
    is_shown = action.help not in (None, argparse.SUPPRESS)
    return _Option(
        names=tuple(action.option_strings),
        help=str(action.help).replace("%%", "%") if is_shown else "",
        has_value=action.nargs != 0,
        choices=tuple(map(str, action.choices or ())),
        is_file=bool(action.option_strings) and action.metavar in _FILES,
    )


def _bash(commands: Sequence[_Command]) -> Iterator[str]:
    yield "# bash completion of axil; load it with: source <(axil completion bash)"
    yield "_axil() {"
    yield '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" words=""'
    yield "    COMPREPLY=()"
    yield "    # bash takes --flag=value for three words"
    yield '    if [[ $current == = ]]; then current=""'
    yield '    elif [[ $previous == = ]]; then previous="${COMP_WORDS[COMP_CWORD-2]}"; fi'
    yield "    if (( COMP_CWORD == 1 )); then"
    names = " ".join(["--help", "--version", *(command.name for command in commands)])
    yield f'        COMPREPLY=($(compgen -W {shlex.quote(names)} -- "$current"))'
    yield "        return"
    yield "    fi"
    yield '    case "${COMP_WORDS[1]} $previous" in'
    for command in commands:
        for option in command.options:
            pattern = "|".join(f'"{command.name} {name}"' for name in option.names)
            if option.choices:
                choices = shlex.quote(" ".join(option.choices))
                yield f'        {pattern}) COMPREPLY=($(compgen -W {choices} -- "$current")); return ;;'
            elif option.is_file:
                yield f"        {pattern}) local IFS=$'\\n'; COMPREPLY=($(compgen -f -- \"$current\")); return ;;"
            elif option.has_value:
                yield f"        {pattern}) return ;;"
    yield "    esac"
    yield '    case "${COMP_WORDS[1]}" in'
    for command in commands:
        words = " ".join([*(name for option in command.options for name in option.names), *command.words])
        yield f"        {command.name}) words={shlex.quote(words)} ;;"
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "    local IFS=$'\\n'  # names of files may have spaces"
    yield '    [[ $current == -* ]] || COMPREPLY+=($(compgen -f -- "$current"))'
    yield "}"
    yield "complete -o filenames -F _axil axil"


def _zsh(commands: Sequence[_Command]) -> Iterator[str]:
    yield "#compdef axil"
    yield "# zsh completion of axil; load it with: source <(axil completion zsh)"
    yield "_axil() {"
    yield "    local -a commands=("
    for command in commands:
        yield f"        {shlex.quote(f'{command.name}:{command.help}')}"
    yield "    )"
    yield "    if (( CURRENT == 2 )); then"
    yield "        [[ $words[2] == -* ]] && compadd -- --help --version || _describe command commands"
    yield "        return"
    yield "    fi"
    yield "    local command=$words[2]"
    yield "    shift words"
    yield "    (( CURRENT-- ))"
    yield "    case $command in"
    for command in commands:
        specs = [_zsh_option(name, option) for option in command.options for name in option.names]
        specs.append(f"*:word:({' '.join(command.words)})" if command.words else "*:file:_files")
        yield f"        {command.name}) _arguments {' '.join(map(shlex.quote, specs))} ;;"
    yield "    esac"
    yield "}"
    yield 'if [[ $funcstack[1] == _axil ]]; then _axil "$@"; else compdef _axil axil; fi'


def _zsh_option(name: str, option: _Option) -> str:
    text = option.help
    for special in ("\\", "[", "]", ":"):
        text = text.replace(special, f"\\{special}")
    shown = f"[{text}]" if text else ""
    if not option.has_value:
        return f"{name}{shown}"
    values = f"({' '.join(option.choices)})" if option.choices else "_files" if option.is_file else " "
    return f"{name}={shown}:value:{values}"


def _fish(commands: Sequence[_Command]) -> Iterator[str]:
    yield "# fish completion of axil; load it with: axil completion fish | source"
    yield "complete -c axil -n __fish_use_subcommand -f"
    yield "complete -c axil -n __fish_use_subcommand -l help -l version"
    for command in commands:
        yield f"complete -c axil -n __fish_use_subcommand -a {command.name} -d {_fish_quoted(command.help)}"
    for command in commands:
        start = f"complete -c axil -n '__fish_seen_subcommand_from {command.name}'"
        if command.words:
            yield f"{start} -f -a {_fish_quoted(' '.join(command.words))}"
        for option in command.options:
            yield f"{start} {_fish_option(option)}"


def _fish_option(option: _Option) -> str:
    words = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    if option.choices:
        words.append(f"-x -a {_fish_quoted(' '.join(option.choices))}")
    elif option.has_value:
        words.append("-r" if option.is_file else "-x")
    if option.help:
        words.append(f"-d {_fish_quoted(option.help)}")
    return " ".join(words)


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
