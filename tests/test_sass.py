"""The compiled kernels keep what is promised of their machine code; benchmarks/results has it as it is."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from transcast import _library

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "benchmarks"))
sys.path.append(str(ROOT / "third_party"))

import finders  # noqa: E402
import sass  # noqa: E402
import sass_page  # noqa: E402
import sass_rules  # noqa: E402

COMMITTED = json.loads(sass.TABLE.read_text())
TRAFFIC = json.loads(sass.TABLE.with_name("traffic.json").read_text())
LIBRARIES = sorted(Path(_library.__file__).parent.glob("_cuda*.so"))
NVCC, NVCC_PLACE = finders.find_nvcc()
# A package without CUDA is a supported build: what is said of its machine code has nothing to be compared with.
needs_library = pytest.mark.skipif(
    not LIBRARIES, reason=f"_cuda is not built, there is no machine code: {_library.build_info['cuda_note']}"
)
needs_nvcc = pytest.mark.skipif(NVCC is None, reason=f"sizes of CUDA sources: there is no nvcc in {NVCC_PLACE}")


@pytest.fixture(scope="module")
def built() -> dict:
    """The table of the library that was built with the package under test."""
    return sass.read(LIBRARIES[0])


def test_committed_table_keeps_the_rules() -> None:
    assert COMMITTED["archs"] == ["8.9", "9.0", "10.0", "12.0"]
    for arch in COMMITTED["archs"]:
        families = {sass_rules.family(row["kernel"]) for row in COMMITTED["rows"] if row["arch"] == arch}
        assert families == sass_rules.KERNELS.keys()
    assert [what for row in COMMITTED["rows"] for what in sass_rules.violations(row)] == []


def test_the_page_shows_the_committed_table() -> None:
    assert sass.TABLE.read_text() == sass.as_json(COMMITTED)
    assert sass.PAGE.read_text() == sass_page.page(COMMITTED)


@needs_library
def test_built_kernels_keep_the_rules(built: dict) -> None:
    assert [what for row in built["rows"] for what in sass_rules.violations(row)] == []


@needs_library
def test_built_kernels_are_those_of_the_committed_table(built: dict) -> None:
    if built["nvcc"] != COMMITTED["nvcc"] or not set(built["archs"]) <= set(COMMITTED["archs"]):
        warnings.warn(
            f"built with nvcc {built['nvcc']} for {built['archs']}: only the rules are checked, the "
            f"committed table is that of nvcc {COMMITTED['nvcc']} for {COMMITTED['archs']}",
            stacklevel=1,
        )
        return
    assert sass.differences(built, COMMITTED) == [], "python benchmarks/sass.py --write makes the table anew"


# arch, threads, registers, shared memory: resident warps, by hand from the limits of the programming guide.
OCCUPANCIES = [
    (("9.0", 256, 32, 0), 64 / 64),
    (("9.0", 256, 33, 0), 48 / 64),  # 40 registers are handed out: 12 warps per partition
    (("9.0", 512, 64, 32832), 32 / 64),
    (("9.0", 128, 40, 32832), 24 / 64),  # shared memory: 228 KiB hold 6 blocks
    (("8.9", 128, 40, 32832), 12 / 48),  # 100 KiB hold 3
    (("8.9", 512, 128, 0), 16 / 48),
    (("10.0", 32, 16, 0), 32 / 64),  # 32 blocks
    (("12.0", 32, 16, 0), 24 / 48),  # 24 blocks
    (("12.0", 512, 129, 0), 0.0),  # 12 warps fit
]


@pytest.mark.parametrize("launch, expected", OCCUPANCIES)
def test_occupancy(launch: tuple[str, int, int, int], expected: float) -> None:
    assert sass_rules.occupancy(*launch) == pytest.approx(expected, abs=1e-3)


def test_the_rules_state_what_is_launched() -> None:
    """On the emulator, whose table test_traffic.py makes anew; kernels around GEMMs are not in it."""
    for launch in (launch for row in TRAFFIC for launch in row["launches"]):
        shape = sass_rules.KERNELS[sass_rules.family(launch["kernel"])]
        assert launch["threads"] in shape.threads, launch
        assert launch["shared"] == shape.shared, launch


SIZES = """\
#include "cuda/cast.cuh"
#include "cuda/sums.cu"
using namespace transcast::cuda;
static_assert(sizeof(TileSmem) == {tile} && sizeof(Maxima) == {maxima} && sizeof(Smem) == {sums});
static_assert(32 * kRowWarps == {rows} && 32 * kMaxWarps == {tiles});
static_assert(kRowsPerWarp * kSegment / 32 == {row_elements} && kWarpRows * kSegment / 32 == {tile_elements});
"""


@needs_nvcc
def test_the_rules_state_the_sizes_of_tiles_and_sums(tmp_path: Path) -> None:
    rows, tiles = sass_rules.KERNELS["rows_kernel"], sass_rules.KERNELS["tiles_kernel"]
    sizes = {
        "tile": tiles.shared,
        "maxima": rows.shared,
        "sums": sass_rules.KERNELS["add_sums_kernel"].shared,
        "rows": rows.threads[0],
        "tiles": tiles.threads[0],
        "row_elements": rows.elements,
        "tile_elements": tiles.elements,
    }
    source = tmp_path / "sizes.cu"
    source.write_text(SIZES.format(**sizes))
    command = [NVCC, "-std=c++17", "-arch=sm_90", f"-I{ROOT / 'csrc'}", "-ptx", str(source)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
