"""Compiles the C++ libraries into the wheel where `AXIL_BUILD_KERNELS=1` asks for it; else the first start does."""

import os
import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # builds are isolated: nothing is installed there, and what is imported needs nothing

from model_runner.kernels.build import programs  # noqa: E402
from radix.native.build import TREE  # noqa: E402
from wire.native import CannotBuild, ship  # noqa: E402

IS_WANTED = os.environ.get("AXIL_BUILD_KERNELS", "") not in ("", "0")


class BuildPy(build_py):
    """Puts the libraries beside their sources: the tree, and the kernels for every instruction set."""

    def run(self) -> None:
        """Copy the packages, and build what is asked for."""
        super().run()
        into = ROOT if self.editable_mode else Path(self.build_lib)
        places = {program: into / program.shipped.parent.relative_to(ROOT) for program in (TREE, *programs())}
        for place in places.values():
            shutil.rmtree(place, ignore_errors=True)  # what an earlier build left there
        if not IS_WANTED:
            return
        for program, place in places.items():
            try:
                print("built", ship(program, place))
            except CannotBuild as error:
                raise CompileError(str(error)) from error


class BdistWheel(bdist_wheel):
    """Names the machine that the libraries are for; they depend on no version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python, ABI and platform in the wheel's name."""
        python, abi, platform = super().get_tag()
        return ("py3", "none", platform) if IS_WANTED else (python, abi, platform)


class OfThisMachine(Distribution):
    """A package that other machines can't have."""

    def has_ext_modules(self) -> bool:
        """Whether there is more in it than Python."""
        return True


setup(
    cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel},
    distclass=OfThisMachine if IS_WANTED else Distribution,
)
