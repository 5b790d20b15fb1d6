import shutil
import subprocess
from pathlib import Path

import pytest

from runtime.cli import build_parser
from runtime.shell_completion import completion_script


def script(shell: str) -> str:
    return completion_script(build_parser("0"), shell)


def completed(*words: str, cwd: Path) -> list[str]:
    """What bash offers when the last of `words` is being typed."""
    quoted = " ".join(f"'{word}'" for word in words)
    run = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _axil; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    result = subprocess.run(
        ["bash", "--norc", "-uc", f"{script('bash')}\n{run}"],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert result.stderr == ""
    return result.stdout.removesuffix("\n").split("\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("axil", "se"), ["serve"]),
        (("axil", "serve", "--max-r"), ["--max-running"]),
        (("axil", "serve", "--dtype", ""), ["auto", "bfloat16", "float32"]),
        (("axil", "serve", "--port", ""), [""]),
        (("axil", "serve", "--config", "fla"), ["fla gs.yaml"]),
        (("axil", "serve", "fla"), ["fla gs.yaml"]),
        (("axil", "chat", "--ur"), ["--url"]),
        (("axil", "completion", "z"), ["zsh"]),
    ],
)
def test_bash_offers_what_the_command_takes(tmp_path: Path, words: tuple[str, ...], expected: list[str]) -> None:
    (tmp_path / "fla gs.yaml").touch()
    assert completed(*words, cwd=tmp_path) == expected


@pytest.mark.parametrize(("shell", "check"), [("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])])
def test_the_other_shells_accept_their_scripts(tmp_path: Path, shell: str, check: list[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(script(shell))
    subprocess.run([*check, str(path)], check=True, timeout=30)


def test_every_flag_of_every_command_is_in_every_script() -> None:
    for shell, spelt in (("bash", "--{}"), ("zsh", "--{}"), ("fish", "-l {}")):
        text = script(shell)
        for name in ("max-total-tokens", "no-overlap", "url", "temperature", "config"):
            assert spelt.format(name) in text, (shell, name)


def test_quotes_in_help_texts_do_not_end_a_word() -> None:
    parser = build_parser("0", {})
    text = completion_script(parser, "fish")
    assert all(line.replace("\\'", "").count("'") % 2 == 0 for line in text.splitlines())
