"""A checkpoint that was changed is refused, or is a well-formed one: never a crash."""

from tools.fuzz_checkpoints import check


def test_a_mutated_checkpoint_is_refused_or_well_formed():
    tally = check(30, 12)

    assert sum(tally.values()) >= 60
    assert {seen for kind, _, seen in tally if kind == "damaged"} <= {"refused", "unchanged"}
    assert {seen for kind, _, seen in tally if kind == "forged"} == {"refused", "loaded"}
    assert {seen for kind, _, seen in tally if kind == "altered"} == {"refused", "trained"}
