"""Measuring again how far the original moves: budgets only grow, goldens stay, two measurements must agree."""

import copy
import shutil

import pytest

from parity.store import FIXTURES, Store, manifest_bytes
from reference import movement
from reference.__main__ import main
from reference.measure import JITTERS_WHERE_IT_MOVES
from reference.record import RecordError

LAYER, CASE = "ops/kl", "equal"


@pytest.fixture
def store(tmp_path):
    shutil.copy(FIXTURES / "manifest.json", tmp_path)
    return Store(tmp_path)


def measures(of):
    return of.manifest["layers"][LAYER]["cases"][CASE]["accuracy"]


def test_a_budget_that_was_measured_too_small_grows_and_nothing_else_changes(store):
    before = copy.deepcopy(store.manifest)
    kind, output = "value", next(iter(measures(store)["value"]))
    known = {of: {name: a["sensitivity64"] for name, a in outputs.items()} for of, outputs in measures(store).items()}
    moved = {of: {name: sensitivity / 2 for name, sensitivity in outputs.items()} for of, outputs in known.items()}
    moved[kind][output] = 3 * known[kind][output] + 1e-9
    (said,) = movement.write(store, store.root, {(LAYER, CASE): moved})
    assert said.startswith(f"{LAYER}[{CASE}] {kind} of {output}: ")
    after = copy.deepcopy(Store(store.root).manifest)
    expected = before["layers"][LAYER]["cases"][CASE]
    expected["accuracy"][kind][output]["sensitivity64"] = moved[kind][output]
    expected["movements"] = JITTERS_WHERE_IT_MOVES
    same = {"digest": "", "rules": ""}
    assert {**after, **same} == {**before, **same}


def test_cases_are_measured_where_movement_comes_near_to_the_budget_and_no_branch_is(store):
    assert list(movement.moving(store, [LAYER])) == [(LAYER, CASE)]
    changed = copy.deepcopy(store.manifest)
    changed["layers"][LAYER]["cases"][CASE]["near_branch"] = {"out": 1}
    (store.root / "manifest.json").write_bytes(manifest_bytes(changed))
    assert list(movement.moving(Store(store.root), [LAYER])) == []


@pytest.mark.parametrize("second", [1.0, 2.0])
def test_two_measurements_must_agree(second, monkeypatch, tmp_path):
    answers = [((LAYER, CASE), part, {"value": {"out": x}}) for part, x in (("a", 1.0), ("b", second))]
    monkeypatch.setattr(movement, "run_all", lambda function, pieces, jobs: iter(answers))
    if second == 1.0:
        assert movement.measured_twice(tmp_path, [(LAYER, CASE)], 1) == {(LAYER, CASE): {"value": {"out": 1.0}}}
    else:
        with pytest.raises(RecordError, match=r"two measurements differ in ops/kl\[equal\]"):
            movement.measured_twice(tmp_path, [(LAYER, CASE)], 1)


def test_what_cannot_be_measured_is_said(monkeypatch, capsys):
    monkeypatch.setattr(movement, "require_original", lambda: None)
    assert main(["movement", "ops/nothing"]) == 2
    assert "no layer is called 'ops/nothing'" in capsys.readouterr().err

    def refuse():
        raise RecordError("the original is absent.")

    monkeypatch.setattr(movement, "require_original", refuse)
    assert main(["movement", LAYER]) == 2
    assert "the original is absent" in capsys.readouterr().err
