import os
import subprocess
import sys
from pathlib import Path

import pytest

import axil

ROOT = Path(axil.__file__).parent.parent
COMMAND = "import sys; from axil.command import main; sys.exit(main())"


def run(*arguments: str, cwd: Path, first_on_path: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(entry) for entry in (first_on_path, ROOT) if entry is not None)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def script(tmp_path: Path) -> Path:
    """A console script as pip writes it, in a directory of its own."""
    path = tmp_path / "bin" / "axil"
    path.parent.mkdir()
    path.write_text(COMMAND)
    return path


def test_a_stray_scheduler_in_the_working_directory_changes_nothing_for_the_command(tmp_path: Path) -> None:
    (tmp_path / "scheduler.py").write_text("raise SystemExit('the wrong scheduler')")
    command = str(script(tmp_path))
    version = run(command, "--version", cwd=tmp_path)
    assert (version.returncode, version.stdout) == (0, f"axil {axil.__version__}\n"), version.stderr
    assert run(command, "serve", "--help", cwd=tmp_path).returncode == 0


def test_a_stray_scheduler_in_the_working_directory_changes_nothing_for_the_processes(tmp_path: Path) -> None:
    (tmp_path / "scheduler.py").write_text("raise SystemExit('the wrong scheduler')")
    found = run("-P", "-c", "import scheduler.config; print(scheduler.__file__)", cwd=tmp_path)
    assert found.stdout.strip() == str(ROOT / "scheduler" / "__init__.py"), found.stderr


@pytest.mark.parametrize("intruder", ["radix.py", "radix/__init__.py"])
def test_a_foreign_package_that_comes_first_is_named_with_the_cure(tmp_path: Path, intruder: str) -> None:
    foreign = tmp_path / "foreign" / intruder
    foreign.parent.mkdir(parents=True)
    foreign.write_text("raise SystemExit('never to be imported')")
    for command in ((str(script(tmp_path)), "--version"), ("-P", "-c", "import axil")):
        result = run(*command, cwd=tmp_path, first_on_path=tmp_path / "foreign")
        assert result.returncode == 1
        assert f"needs its own package 'radix' from {ROOT}" in result.stderr
        assert str(foreign) in result.stderr
        assert "pipx" in result.stderr


def test_a_namespace_directory_without_an_init_does_not_shadow_ours(tmp_path: Path) -> None:
    (tmp_path / "radix").mkdir()
    assert run("-P", "-c", "import axil", cwd=tmp_path, first_on_path=tmp_path).returncode == 0


def test_the_version_and_the_help_import_neither_torch_nor_a_process(tmp_path: Path) -> None:
    code = (
        "import sys, contextlib\nfrom axil.command import main\n"
        "sys.argv = ['axil', *{arguments}]\n"
        "with contextlib.suppress(SystemExit):\n    main()\n"
        "print(sorted({{'torch', 'numpy', 'zmq', 'aiohttp', 'tokenizers', 'gguf'}} & sys.modules.keys()))"
    )
    for arguments in (["--version"], ["serve", "--help"]):
        result = run("-P", "-c", code.format(arguments=arguments), cwd=tmp_path)
        assert result.stdout.splitlines()[-1] == "[]", result.stderr


def test_a_folder_named_axil_in_the_working_directory_does_not_hide_the_package(tmp_path: Path) -> None:
    (tmp_path / "axil").mkdir()
    script = tmp_path / "mine.py"
    script.write_text("import axil\nprint(axil.__version__)\n")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == axil.__version__
