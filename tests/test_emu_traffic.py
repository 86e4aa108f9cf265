"""What the emulator counts, against numbers made by hand."""

from __future__ import annotations

import pytest


def counted(emu, example: str, arguments: list[int]) -> dict:
    emu.count(True)
    emu.run_example(example, arguments)
    (launch,) = emu.launches()
    return launch


# bytes per lane, stride, offset, lanes -> sectors of 32 bytes
SECTORS = {
    (16, 16, 0, 32): 16,
    (8, 8, 0, 32): 8,
    (4, 4, 0, 32): 4,
    (1, 1, 0, 32): 1,
    (4, 4, 4, 32): 5,  # ends in a sector of its own
    (4, 4, 0, 7): 1,
    (4, 4, 0, 9): 2,
    (4, 32, 0, 32): 32,
    (4, 0, 64, 32): 1,
    (16, 32, 16, 32): 32,
    (16, 512, 0, 8): 8,
    (1, 31, 0, 32): 31,  # 31 * 31 = 961 = 30 * 32 + 1; sector 0 has lanes 0 and 1
    (4, 4, 0, 0): 0,
}


@pytest.mark.parametrize("pattern", SECTORS, ids=str)
def test_sectors_of_a_warp(emu, pattern):
    width, stride, _, lanes = pattern
    if stride == 0:
        with pytest.raises(RuntimeError, match="byte stored twice"):
            emu.run_example("global_pattern", list(pattern))
        return
    launch = counted(emu, "global_pattern", list(pattern))
    for access in ("read", "written"):
        traffic = launch[access]
        assert traffic["sectors"] == SECTORS[pattern]
        assert traffic["bytes"] == width * lanes
        assert traffic["widths"] == ({width: 1} if lanes else {})


def test_sectors_of_lanes_that_take_part_at_different_times(emu):
    """Lanes 0 to 3 in one instruction, 4 to 7 in the next: the sector they share is moved twice."""
    launch = counted(emu, "rows_of_a_sector", [])
    for access in ("read", "written"):
        assert (launch[access]["sectors"], launch[access]["bytes"]) == (2, 32)
        assert launch[access]["widths"] == {4: 2}


# bytes per lane, stride, offset, lanes -> wavefronts, and the least there could be
WAVEFRONTS = {
    (4, 4, 0, 32): (1, 1),
    (4, 8, 0, 32): (2, 1),
    (4, 128, 0, 32): (32, 1),
    (4, 132, 0, 32): (1, 1),
    (4, 4, 0, 5): (1, 1),
    (8, 8, 0, 32): (2, 2),
    (8, 16, 0, 32): (4, 2),
    (8, 136, 0, 32): (2, 2),
    (8, 128, 0, 32): (32, 2),
    (16, 16, 0, 32): (4, 4),
    (16, 144, 0, 32): (4, 4),
    (16, 128, 0, 32): (32, 4),
    (16, 16, 0, 8): (1, 1),
    (1, 1, 0, 32): (1, 1),
    (1, 128, 0, 32): (32, 1),
}


@pytest.mark.parametrize("pattern", WAVEFRONTS, ids=str)
def test_wavefronts_of_a_warp(emu, pattern):
    launch = counted(emu, "shared_pattern", list(pattern))
    for access in ("read", "written"):
        traffic = launch[access]
        assert (traffic["wavefronts"], traffic["wavefronts_minimum"]) == WAVEFRONTS[pattern]
        assert traffic["sectors"] == 0


def test_a_launch_in_all_its_numbers(emu):
    launch = counted(emu, "two_passes", [])
    assert launch["kernel"] == "twice_kernel"
    assert (launch["grid"], launch["block"], launch["shared_bytes"]) == ((3, 1, 1), (64, 1, 1), 0)
    # 3 blocks x 2 passes x 2 warps of 128 bytes: 4 sectors each; 256 different bytes.
    assert (launch["read"]["sectors"], launch["read"]["bytes"]) == (48, 256)
    assert launch["read"]["widths"] == {4: 12}
    assert launch["written"]["sectors"] == 0
    assert (launch["barriers"], launch["atomics"]) == (3, 3)


def test_nothing_is_counted_unless_asked(emu):
    emu.run_example("two_passes", [])
    assert emu.launches() == []
