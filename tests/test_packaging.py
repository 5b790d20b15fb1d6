"""What is shipped beside the code: container files, their linter's view of them, the systemd unit."""

from __future__ import annotations

import argparse
import configparser
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from model_runner.kernels.build import programs
from radix.native.build import TREE
from runtime.config import FLAG_GROUPS, HttpConfig
from runtime.http import app as http_app
from wire.flags import add_flags, from_flags
from wire.native import COMPILERS

ROOT = Path(__file__).parent.parent
CONTAINER_FILES = ("Containerfile", "Containerfile.cuda")
STOP_TIMEOUT_S = 10
"""What `docker stop` and `podman stop` wait before they kill."""


@dataclass(frozen=True)
class Instruction:
    name: str
    words: str

    @property
    def strings(self) -> list[str]:
        """The words of an instruction in its JSON form."""
        return [str(word) for word in json.loads(self.words[self.words.index("[") :])]


def instructions(name: str) -> list[Instruction]:
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / name).read_text())
    lines = text.replace("\\\n", " ").splitlines()
    return [Instruction(*line.split(maxsplit=1)) for line in lines if line.strip()]


def last_stage(name: str) -> list[Instruction]:
    found = instructions(name)
    last = max(i for i, instruction in enumerate(found) if instruction.name == "FROM")
    return found[last:]


def the_only(name: str, kind: str) -> Instruction:
    (found,) = [instruction for instruction in last_stage(name) if instruction.name == kind]
    return found


def serve_flags(words: list[str]) -> HttpConfig:
    """The HTTP settings that `axil serve` makes of a command's words."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--config")
    for _, title, cls in FLAG_GROUPS:
        add_flags(parser, cls, title=title)
    config = from_flags(HttpConfig, parser.parse_args(words))
    assert isinstance(config, HttpConfig)
    return config


def scripts() -> dict[str, str]:
    project: dict[str, dict[str, str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["scripts"]


@pytest.mark.parametrize("name", CONTAINER_FILES)
def test_the_linter_finds_nothing(name: str) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    found = subprocess.run([hadolint, "--no-color", name], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize("name", CONTAINER_FILES)
def test_everything_that_is_installed_is_copied_into_the_image_and_exists(name: str) -> None:
    copied = {
        source
        for instruction in instructions(name)
        if instruction.name == "COPY" and not instruction.words.startswith("--from")
        for source in instruction.words.split()[:-1]
    }
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {pattern.removesuffix("*") for pattern in setuptools["packages"]["find"]["include"]}
    assert copied == packages | {"setup.py", "pyproject.toml", "README.md", "LICENSE", "constraints.txt"}
    for source in copied:
        assert (ROOT / source).exists()


def test_the_build_context_holds_what_is_copied_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".containerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    kept = {line[1:] for line in lines if line[0] == "!"}
    for name in CONTAINER_FILES:
        for instruction in instructions(name):
            if instruction.name == "COPY" and not instruction.words.startswith("--from"):
                assert kept >= set(instruction.words.split()[:-1])
    assert not any(fnmatch.fnmatch(secret, pattern) for secret in (".git", ".env", ".venv") for pattern in kept)
    assert (ROOT / ".dockerignore").read_text() == (ROOT / ".containerignore").read_text()


def test_the_image_for_cpus_is_built_with_its_kernels() -> None:
    commands = [instruction.words for instruction in instructions("Containerfile") if instruction.name == "RUN"]
    installed = {word for words in commands if "apt-get install" in words for word in words.split()}
    assert installed & set(COMPILERS)  # a slim Python image has none
    assert any("AXIL_BUILD_KERNELS=1 pip install" in words for words in commands)


def test_a_wheel_with_kernels_has_those_of_every_instruction_set_and_is_for_this_machine_only(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done\n')
    compiler.chmod(0o755)
    wheels = {}
    for is_wanted in ("1", "0"):
        command = [sys.executable, "-W", "ignore", "setup.py", "--quiet", "egg_info", "--egg-base", tmp_path]
        command += ["build", "--build-base", tmp_path / "build"]
        command += ["bdist_wheel", "--bdist-dir", tmp_path / "wheel", "--dist-dir", tmp_path / is_wanted]
        asked = os.environ | {"AXIL_BUILD_KERNELS": is_wanted, "CXX": str(compiler)}
        done = subprocess.run(command, cwd=ROOT, env=asked, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (wheels[is_wanted],) = (tmp_path / is_wanted).iterdir()
    assert re.fullmatch(r"axil-[\d.]+-py3-none-linux_\w+\.whl", wheels["1"].name)
    assert re.fullmatch(r"axil-[\d.]+-py3-none-any\.whl", wheels["0"].name)
    libraries = {
        name: [path for path in zipfile.ZipFile(wheel).namelist() if path.endswith(".so")]
        for name, wheel in wheels.items()
    }
    shipped = {str(program.shipped.relative_to(ROOT)) for program in (TREE, *programs())}
    assert set(libraries["1"]) == shipped and not libraries["0"]


@pytest.mark.parametrize("name", CONTAINER_FILES)
def test_every_install_takes_the_pinned_versions(name: str) -> None:
    installs = [
        command
        for instruction in instructions(name)
        if instruction.name == "RUN"
        for command in instruction.words.split("&&")
        if "pip install" in command
    ]
    assert len(installs) == 3
    assert all("--constraint constraints.txt" in command and "--no-cache-dir" in command for command in installs)


@pytest.mark.parametrize("name", CONTAINER_FILES)
def test_it_does_not_run_as_root_and_its_user_can_write_the_model_volume(name: str) -> None:
    user, group = the_only(name, "USER").words.split(":")
    assert int(user) > 0
    assert int(group) > 0
    (volume,) = the_only(name, "VOLUME").strings
    commands = [instruction.words for instruction in last_stage(name) if instruction.name == "RUN"]
    (setup,) = [words for words in commands if "useradd" in words]
    assert f"useradd --uid {user} --gid axil" in setup
    assert f"groupadd --gid {group} axil" in setup
    assert f"--owner axil --group axil {volume}" in setup
    environment = the_only(name, "ENV").words
    assert f"HF_HOME={volume}/" in environment


@pytest.mark.parametrize("name", CONTAINER_FILES)
def test_its_command_exists_listens_to_the_outside_and_drains_before_a_stop_kills(name: str) -> None:
    program, command, *flags = the_only(name, "ENTRYPOINT").strings
    assert program in scripts()
    assert command == "serve"
    http = serve_flags(flags)
    assert http.host == "0.0.0.0"
    assert str(http.port) == the_only(name, "EXPOSE").words
    assert http.drain_seconds < STOP_TIMEOUT_S
    assert the_only(name, "STOPSIGNAL").words == "SIGTERM"


@pytest.mark.parametrize("name", CONTAINER_FILES)
def test_its_health_check_asks_a_route_that_needs_no_key_at_the_port_that_is_served(name: str) -> None:
    _, _, code = the_only(name, "HEALTHCHECK").strings
    compile(code, name, "exec")
    (url,) = re.findall(r"http://127\.0\.0\.1:\d+/\w+", code)
    port, path = url.removeprefix("http://127.0.0.1:").split("/")
    assert port == the_only(name, "EXPOSE").words
    assert f"/{path}" in {route.path for route in http_app.ROUTES if route.access == "open"}


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    parser.read(ROOT / "docs" / "axil.service")
    return parser["Service"]


def test_the_systemd_unit_starts_axil_and_waits_longer_than_open_requests_may_take() -> None:
    program, command, *flags = shlex.split(unit()["ExecStart"])
    assert Path(program).name in scripts()
    assert command == "serve"
    assert serve_flags(flags).drain_seconds + 5 <= float(unit()["TimeoutStopSec"])
    assert unit()["KillMode"] == "mixed"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "axil.service").read_text()
    copy = tmp_path / "axil.service"
    copy.write_text(text.replace("/opt/axil/bin/axil", str(Path(sys.executable).with_name("axil"))))
    found = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_every_file_of_the_live_view_is_shipped() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    files = [path for path in (ROOT / "runtime" / "ui").rglob("*") if path.is_file()]
    assert files
    for path in files:
        name = str(path.relative_to(ROOT / "runtime"))
        assert any(fnmatch.fnmatch(name, pattern) for pattern in data["runtime"]), name
