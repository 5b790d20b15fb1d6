"""What the three shells offer; a shell that is not installed is skipped."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from runtime.cli import build_parser
from runtime.shell_completion import SHELLS, completion_script

SUBCOMMANDS = {"serve", "chat", "generate", "completion", "fetch-demo", "build-kernels", "bench"}

# what is being typed, and what is offered for its last word (in whatever order)
OFFERS: list[tuple[str, set[str]]] = [
    ("axil se", {"serve"}),
    ("axil --ver", {"--version"}),
    ("axil ser --no", set()),
    ("axil serve --max-r", {"--max-running"}),
    ("axil serve model.gguf --max-r", {"--max-running"}),
    ("axil serve --no-over", {"--no-overlap"}),
    ("axil serve --dtype ", {"auto", "bfloat16", "float16", "float32"}),
    ("axil serve --dtype b", {"bfloat16"}),
    ("axil serve --dtype=b", {"bfloat16"}),
    ("axil serve --port ", set()),
    ("axil serve --config fla", {"fla gs.yaml"}),
    ("axil serve --record fla", {"fla gs.yaml"}),
    ("axil serve fla", {"fla gs.yaml"}),
    ("axil chat --ur", {"--url"}),
    ("axil completion z", {"zsh"}),
]

# Types lines into an interactive zsh on a pseudo-terminal, has each completed, and prints what was offered.
ZSH_DRIVER = r"""
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PROMPT=; autoload -Uz compinit; compinit -D -u; source $1
compadd() {
    local -a offered
    [[ \${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]] || { builtin compadd -A offered \"\$@\"; print -rl -- \$offered; }
    builtin compadd \"\$@\"
}
offer() { print -r 'OFFER''ED'; zle complete-word; BUFFER=; print -r 'E''ND'; }
zle -N offer; bindkey '^I' offer; print READY''NOW"
zpty -r z shown '*READYNOW*'
for line in "${@:2}"; do
    zpty -w -n z "$line"$'\t'
    zpty -r z shown $'*OFFERED*\nEND*'
    print -r -- "$shown"
done
"""


def script(shell: str) -> str:
    return completion_script(build_parser("0"), shell)


def run(*command: str, cwd: Path) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=True)
    assert result.stderr == ""
    return result.stdout


def offered_by_bash(lines: list[str], cwd: Path) -> list[set[str]]:
    asks = []
    for line in lines:
        words = [word for word in re.split(r" |(=)", line) if word is not None]  # bash breaks words at = too
        quoted = " ".join(f"'{word}'" for word in words)
        asks.append(f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _axil")
        asks.append("printf '%s\\n' \"${COMPREPLY[@]}\" END")
    shown = run("bash", "--norc", "-uc", "\n".join([script("bash"), *asks]), cwd=cwd)
    return [words_of(part) for part in shown.split("END\n")[:-1]]


def offered_by_zsh(lines: list[str], cwd: Path) -> list[set[str]]:
    (cwd / "axil.zsh").write_text(script("zsh"))
    (cwd / "driver.zsh").write_text(ZSH_DRIVER)
    shown = run("zsh", "-f", "driver.zsh", "axil.zsh", *lines, cwd=cwd).replace("\r", "")
    return [words_of(part.partition("\nEND")[0].replace("\\", "")) for part in shown.split("OFFERED")[1:]]


def offered_by_fish(lines: list[str], cwd: Path) -> list[set[str]]:
    (cwd / "axil.fish").write_text(script("fish"))
    asks = [f"complete -C '{line}'; echo END" for line in lines]
    shown = run("fish", "--no-config", "-c", "\n".join(["source axil.fish", *asks]), cwd=cwd)
    return [words_of(part) for part in shown.split("END\n")[:-1]]


def words_of(shown: str) -> set[str]:
    words = [line.partition("\t")[0].removeprefix("--dtype=") for line in shown.split("\n")]
    return {word for word in words if word}


OFFERED_BY = {"bash": offered_by_bash, "zsh": offered_by_zsh, "fish": offered_by_fish}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_offers_what_the_command_takes(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "fla gs.yaml").touch()
    lines = [line for line, _ in OFFERS]
    offered = OFFERED_BY[shell]([*lines, "axil "], tmp_path)
    assert dict(zip(lines, offered[:-1], strict=True)) == dict(OFFERS)
    assert offered[-1] >= SUBCOMMANDS


def test_every_flag_of_every_command_is_in_every_script() -> None:
    for shell, spelt in (("bash", "--{}"), ("zsh", "--{}"), ("fish", "-l {}")):
        text = script(shell)
        for name in ("max-total-tokens", "no-overlap", "url", "temperature", "config"):
            assert spelt.format(name) in text, (shell, name)


def test_quotes_in_help_texts_do_not_end_a_word() -> None:
    parser = build_parser("0", {})
    text = completion_script(parser, "fish")
    assert all(line.replace("\\'", "").count("'") % 2 == 0 for line in text.splitlines())
