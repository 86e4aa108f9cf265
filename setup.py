"""Builds transcast's extension modules through CMake and ninja; the metadata is in pyproject.toml.

Environment: TRANSCAST_CUDA=0|1 skips or demands the CUDA module, TORCH_CUDA_ARCH_LIST narrows its archs,
CUDA_HOME or CUDACXX choose nvcc, CXX the C++ compiler, MAX_JOBS how many compilers run at once,
TRANSCAST_SANITIZE=1 builds with AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "third_party"))
from finders import INSTALL, WITHOUT_CUDA, make_plan, stop  # noqa: E402


class CMakeBuild(build_ext):
    def run(self) -> None:
        self.plan = make_plan()
        self.configure_and_build()
        if self.plan.cuda.nvcc is None:
            self.drop_cuda()
        super().run()
        atexit.register(self.report)  # the last lines, after what setuptools has to say

    def configure_and_build(self) -> None:
        torch, tools, cuda = self.plan.torch, self.plan.tools, self.plan.cuda
        sanitize = os.environ.get("TRANSCAST_SANITIZE") == "1"
        tag = f"{sys.implementation.cache_tag}-torch{torch.version}" + ("-sanitize" if sanitize else "")
        self.folder = ROOT / "build" / tag
        settings = {
            "CMAKE_MAKE_PROGRAM": tools.ninja,
            "Python_EXECUTABLE": sys.executable,
            "pybind11_DIR": tools.pybind11,
            "TRANSCAST_VERSION": self.distribution.get_version(),
            "TRANSCAST_TORCH_DIR": str(torch.folder),
            "TRANSCAST_TORCH_VERSION": torch.version,
            "TRANSCAST_CUDA_ARCHS": ";".join(cuda.archs),
            "TRANSCAST_CUDA_NOTE": cuda.note.replace(";", ","),  # a semicolon would end a list item in CMake
            "TRANSCAST_SANITIZE": "ON" if sanitize else "OFF",
        }
        if cuda.nvcc:
            settings["CMAKE_CUDA_COMPILER"] = cuda.nvcc
        arguments = [f"-D{name}={value}" for name, value in settings.items()]
        # CMake remembers the compilers of its first run: start it afresh when anything changed. Objects whose
        # command lines stay the same are not compiled again.
        from_environment = [os.environ.get(name, "") for name in ("CXX", "CXXFLAGS")]
        chosen = "\n".join([tools.cmake, *arguments, *from_environment])
        stamp = self.folder / "configured_with"
        fresh = [] if stamp.exists() and stamp.read_text() == chosen else ["--fresh"]
        self.call(tools.cmake, *fresh, "-G", "Ninja", "-S", str(ROOT), "-B", str(self.folder), *arguments)
        stamp.write_text(chosen)
        jobs = ["-j", os.environ["MAX_JOBS"]] if os.environ.get("MAX_JOBS") else []
        self.call(tools.cmake, "--build", str(self.folder), *jobs)

    def call(self, *command: str) -> None:
        if subprocess.run(command).returncode != 0:
            remedy = WITHOUT_CUDA if self.plan.cuda.nvcc else f"then type `{INSTALL}` again"
            stop(f"the build failed; mend what the messages above name, {remedy}")

    def drop_cuda(self) -> None:
        """A _cuda of an earlier build must not stay beside a _C that says it was left out."""
        self.extensions = [extension for extension in self.extensions if extension.name != "transcast._cuda"]
        folders = [Path(self.build_lib)] + ([ROOT / "python"] if self.inplace else [])
        for folder in folders:
            (folder / self.get_ext_filename("transcast._cuda")).unlink(missing_ok=True)

    def build_extension(self, extension: Extension) -> None:
        target = Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # not written over: a running Python may have it loaded
        shutil.copy2(self.folder / "out" / target.name, target)

    def report(self) -> None:
        version, python = self.distribution.get_version(), sys.implementation.cache_tag
        print(f"transcast {version} for {python}, torch {self.plan.torch.version}")
        print("  _C:    built")
        print(f"  _cuda: {self.plan.cuda.note}", flush=True)


class BuildPython(build_py):
    def run(self) -> None:
        # setuptools never removes what an earlier build left: a deleted module would come back in the wheel.
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


if __name__ == "__main__":
    if {"dist_info", "editable_wheel", "bdist_wheel"} & set(sys.argv):
        make_plan()  # stops here, before pip downloads a torch or prints pages of build log
    (ROOT / "build").mkdir(exist_ok=True)
    setup(
        license="Apache-2.0",
        ext_modules=[Extension("transcast._C", []), Extension("transcast._cuda", [])],
        cmdclass={"build_ext": CMakeBuild, "build_py": BuildPython},
        options={"egg_info": {"egg_base": "build"}},
    )
