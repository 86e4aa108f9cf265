"""Puts each fault of tests/mutations into the CUDA sources and demands that a test on the emulator fails.

The emulator is built once. A mutation gets a copy of the sources with its changed file; only the .cu files
that it names are compiled from there, without optimization, and linked with the other objects. Its own tests
run first, then, if they pass, those of the traffic and of the ops. Controls change a comment and nothing else:
tests that fail for them prove nothing about the others.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "python")]

import hypothesis  # noqa: E402, F401  imported before the tests are forked off, as torch and transcast are
import pytest  # noqa: E402

import transcast  # noqa: E402, F401
from emu import build  # noqa: E402
from mutations import CONTROL, CUDA, Mutation  # noqa: E402
from mutations.all import ALL  # noqa: E402

DEFAULT_UNIT = "pass_plain"
# What runs after a mutation's own tests have passed, by the units that were compiled.
PLAIN_TESTS = ["test_amax", "test_cast", "test_quantize"]
OP_TESTS = {
    "pass_activation": ["test_act"],
    "pass_gradient": ["test_dact"],
    "multi_quantize": ["test_multi"],
    "dequantize": ["test_dequantize"],
    "transpose": ["test_transpose"],
    "gemm_epilogue": ["test_gemm", "test_gemm_out", "test_gemm_fp8"],
    "gemm_operands": ["test_gemm", "test_gemm_scales"],
}
PATIENCE = 900  # seconds of the processor until tests count as hanging


@dataclass(frozen=True)
class Verdict:
    mutation: Mutation
    caught_by: str  # empty: by nothing
    seconds: float
    error: str = ""  # why it could not be tried

    @property
    def as_expected(self) -> bool:
        return not self.error and bool(self.caught_by) != bool(self.mutation.survives)

    @property
    def outcome(self) -> str:
        if self.error:
            return "NOT TRIED"
        return self.caught_by or ("survived, as expected" if self.mutation.survives else "SURVIVED")


@dataclass
class Emulator:
    """The unchanged emulator as ninja built it: how to compile and link a part of it anew."""

    module: Path
    compile: dict[str, list[str]] = field(default_factory=dict)  # by unit
    objects: dict[str, str] = field(default_factory=dict)
    included: dict[str, set[str]] = field(default_factory=dict)  # by unit: paths
    link: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.module.parents[1]

    def ninja(self, *arguments: str) -> str:
        command = [build.finders.find_tools().ninja, *arguments]
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout

    @classmethod
    def built(cls) -> Emulator:
        emulator = cls(build.build())
        for line in emulator.ninja("-t", "commands", "_emu").splitlines():
            words = shlex.split(line)
            if words[-1].endswith(".cu"):
                unit = Path(words[-1]).stem
                emulator.compile[unit] = words
                emulator.objects[unit] = words[words.index("-o") + 1]
            elif "-shared" in words:
                emulator.link = [word for word in words if word not in (":", "&&")]
        units = {path: unit for unit, path in emulator.objects.items()}
        for block in emulator.ninja("-t", "deps").split("\n\n"):
            head, *paths = block.split("\n")
            if unit := units.get(head.split(":")[0]):
                emulator.included[unit] = {os.path.normpath(path.strip()) for path in paths}
        return emulator

    def units(self, mutation: Mutation) -> list[str]:
        path = os.path.normpath(CUDA / mutation.file)
        affected = [unit for unit, paths in self.included.items() if path in paths]
        if not affected or not set(mutation.units) <= set(affected):
            raise ValueError(f"{mutation}: only {affected} include the file")
        return list(mutation.units) or [unit for unit in affected if unit == DEFAULT_UNIT] or affected

    def build_mutant(self, mutation: Mutation, folder: Path) -> Path:
        # All of them: a header finds its neighbours in its own folder before it looks anywhere else.
        sources = shutil.copytree(CUDA.parent, folder / "csrc")
        changed = sources / "cuda" / mutation.file
        changed.write_text(mutation.mutated(changed.read_text()))
        link, anew = list(self.link), []
        for unit in self.units(mutation):
            words = list(self.compile[unit])
            words[words.index(f"-I{CUDA.parent}")] = f"-I{sources}"
            words[-1] = str(sources / Path(words[-1]).relative_to(CUDA.parent))
            words[words.index("-o") + 1] = target = str(folder / f"{unit}.o")
            words[words.index("-MF") + 1] = str(folder / f"{unit}.d")
            self._run([*words, "-O0", "-w"])
            link.remove(self.objects[unit])
            anew.append(target)
        module = folder / self.module.name
        link[link.index("-o") + 1] = str(module)
        # First, because of two definitions of an inline function the linker takes the first one.
        at = link.index("-o") + 2
        self._run([*link[:at], *anew, *link[at:]])
        return module

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)}\n{done.stderr[-4000:]}")


class FirstFailure:
    """A pytest plugin that notes the first test to fail."""

    def __init__(self, note: Path) -> None:
        self.note = note

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.note.exists():
            self.note.write_text(report.nodeid.split("/")[-1])


def run_tests(module: Path, arguments: list[str], folder: Path) -> None:
    """In a process of its own: the tests on the emulator of that path."""
    resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE))
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(ROOT)
    try:
        loaded = build.load(module)
    except ImportError as error:  # pytest would count it among the failures
        print(error, flush=True)
        os._exit(pytest.ExitCode.INTERNAL_ERROR)
    build.build, build.load = (lambda *_, **__: module), lambda _: loaded
    plugins = [FirstFailure(folder / "failed")]
    os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *arguments], plugins=plugins))


def noticed_by(module: Path, arguments: list[str], folder: Path) -> str:
    """What of the tests noticed: the first one that failed, or how they ended."""
    tests = multiprocessing.get_context("fork").Process(target=run_tests, args=(module, arguments, folder))
    tests.start()
    tests.join()
    if tests.exitcode == pytest.ExitCode.TESTS_FAILED:
        return (folder / "failed").read_text()
    if tests.exitcode < 0:
        return f"the end of a test by {signal.Signals(-tests.exitcode).name}"
    if tests.exitcode != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest {shlex.join(arguments)}: {(folder / 'log').read_text()[-4000:]}")
    return ""


def noticed(mutation: Mutation, emulator: Emulator, folder: Path) -> str:
    """By which test; the mutation's own ones come first."""
    module = emulator.build_mutant(mutation, folder)
    selections = [list(mutation.tests)]
    if not mutation.survives or mutation.kind == CONTROL:
        units = emulator.units(mutation)
        ops = [f"tests/{test}.py" for unit in units for test in OP_TESTS.get(unit, PLAIN_TESTS)]
        selections += [["tests/test_traffic.py"], ["--backend", "emu", *ops]]
    return next(filter(None, (noticed_by(module, tests, folder) for tests in selections)), "")


def verdict_on(mutation: Mutation, emulator: Emulator) -> Verdict:
    start, caught_by, error = time.monotonic(), "", ""
    with tempfile.TemporaryDirectory() as folder:
        try:
            caught_by = noticed(mutation, emulator, Path(folder))
        except (RuntimeError, ValueError) as failure:
            error = str(failure)
    return Verdict(mutation, caught_by, time.monotonic() - start, error)


def chosen(pattern: str) -> list[Mutation]:
    return [mutation for mutation in ALL if re.search(pattern, str(mutation))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="of 'kind: name [file]'")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutations at a time")
    options = parser.parse_args()
    mutations, emulator = chosen(options.only), Emulator.built()
    unexpected, start = [], time.monotonic()
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        for verdict in pool.map(verdict_on, mutations, [emulator] * len(mutations)):
            print(f"{verdict.seconds:5.1f} s  {str(verdict.mutation):<90}  {verdict.outcome}", flush=True)
            if not verdict.as_expected:
                unexpected.append(verdict)
    survivors = [mutation for mutation in mutations if mutation.survives]
    print(f"{len(mutations)} mutations in {time.monotonic() - start:.0f} s")
    if survivors:
        print(f"{len(survivors)} of them change nothing that counts:")
    for mutation in survivors:
        print(f"  {mutation}: {mutation.survives}")
    for verdict in unexpected:
        print(f"UNEXPECTED: {verdict.mutation}: {verdict.error or verdict.outcome}")
    return 1 if unexpected or not mutations else 0


if __name__ == "__main__":
    sys.exit(main())
