"""The table tells the truth: every bug report has its test or its reason, every unsupported case exists."""

from __future__ import annotations

import re
from pathlib import Path

from cases import CASE_IDS, DEFERRED, DEFERRED_PARTS, UNSUPPORTED

FILES = {file.name: file.read_text() for file in Path(__file__).parent.glob("test_*.py")}
TESTS = re.findall(r"^ *def (test_\w+)", "".join(FILES.values()), re.M)


def ids_in(name: str) -> list[str]:
    """S3 and S4 of test_S3_S4_layouts."""
    return re.match(r"test_((?:[A-Z]\d+_)*)", name)[1].split("_")[:-1]


def test_every_bug_report_has_a_test_or_a_reason():
    tested = {case for name in TESTS for case in ids_in(name)}
    assert tested <= set(CASE_IDS), "an id that there is not"
    assert len(DEFERRED.keys() | tested) == len(DEFERRED) + len(tested), "deferred, but there is a test"
    assert DEFERRED_PARTS.keys() <= tested, "deferred in part, but there is no test"
    assert DEFERRED.keys() | tested == set(CASE_IDS), "neither a test nor a reason"
    assert all(DEFERRED.values()) and all(DEFERRED_PARTS.values())


def test_every_unsupported_case_is_a_test():
    for _, case in UNSUPPORTED:
        found = case in {*TESTS, *FILES}
        assert found or (case[0] == "[" and any(case[1:-1] in text for text in FILES.values())), case
    assert all(UNSUPPORTED.values())
