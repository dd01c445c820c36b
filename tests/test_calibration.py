"""Errors in sigmas, counted: against chance, over ways to compute, and as the fixtures keep them."""

import json
import math

import numpy as np
import pytest

from parity.compare import BINS_PER_SIGMA, NUM_BINS, compare
from parity.goldens.calibration import FILE, Calibration, by_chance, layers_done, recorded

REF = np.ones(1000)


def row(sigmas, dtype="float64", kind="value", sigma=1e-6):
    """A comparison whose errors are so many sigmas."""
    got = (REF + np.asarray(sigmas) * sigma).astype(dtype)
    return compare(("layer", "case", "out"), kind, dtype, REF, got, np.full(REF.shape, sigma))


def test_chance_is_a_distribution():
    shares = by_chance()
    assert len(shares) == NUM_BINS
    assert sum(shares) == pytest.approx(1.0)
    assert all(share > 0 for share in shares)
    assert shares == sorted(shares, reverse=True)


def test_chance_is_that_of_two_errors_of_one_sigma_each():
    below_one_sigma = sum(by_chance()[:BINS_PER_SIGMA])
    assert below_one_sigma == pytest.approx(math.erf(1.0 / math.sqrt(2.0) / math.sqrt(2.0)))
    rng = np.random.default_rng(0)
    drawn = row(rng.standard_normal(REF.size) - rng.standard_normal(REF.size))
    assert np.array(drawn.counts[:12]) / REF.size == pytest.approx(by_chance()[:12], abs=0.04)


def test_comparisons_are_counted_by_way_precision_and_kind():
    held = Calibration()
    held.add("eagerly", [row(0.6), row(2.6), row(9.5)])
    held.add("eagerly", [row(1.0, kind="vjp"), row(1.0, dtype="float32", sigma=1e-3)])
    held.add("otherwise", [row(3.0)])
    found = held.as_json()
    assert list(found) == sorted(
        ["eagerly, float64, value", "eagerly, float64, vjp", "eagerly, float32, value", "otherwise, float64, value"]
    )
    eagerly = found["eagerly, float64, value"]
    assert (eagerly["comparisons"], eagerly["different"]) == (3, 1)
    assert eagerly["largest"] == pytest.approx(9.5, rel=1e-4)
    assert {i: n for i, n in enumerate(eagerly["counts"]) if n} == {2: 1000, 10: 1000, NUM_BINS - 1: 1000}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_an_error_that_no_c_allows_is_counted_as_different_and_not_as_the_largest():
    held = Calibration()
    zero, where = np.zeros(3), ("layer", "case", "out")
    of_no_form = compare(where, "value", "float64", REF, [1.0], REF)
    of_a_zero = compare(where, "value", "float64", zero, zero + 1.0, zero)
    held.add("eagerly", [row(1.0), of_no_form, of_a_zero])
    found = held.as_json()["eagerly, float64, value"]
    assert (found["comparisons"], found["different"]) == (3, 2)
    assert found["largest"] == pytest.approx(1.0, rel=1e-4)
    assert sum(found["counts"]) == REF.size


def test_what_is_recorded_is_summed_over_layers(tmp_path):
    first, second = Calibration(), Calibration()
    first.add("eagerly", [row(0.5), row(2.5)])
    second.add("eagerly", [row(9.5)])
    second.add("otherwise", [row(0.1)])
    layers = {"a": first.as_json(), "b": second.as_json(), "c": {}}
    (tmp_path / "manifest.json").write_text(json.dumps({"digest": "of the goldens"}))
    (tmp_path / FILE).write_text(json.dumps({"manifest": "of the goldens", "layers": layers}))
    total = recorded(tmp_path)
    eagerly = total["eagerly, float64, value"]
    assert (eagerly.comparisons, eagerly.different) == (3, 1)
    assert eagerly.largest == pytest.approx(9.5, rel=1e-4)
    assert sum(eagerly.counts) == 3 * REF.size
    assert total["otherwise, float64, value"].comparisons == 1


def test_without_a_record_of_these_goldens_there_is_nothing_to_sum(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"digest": "of the goldens"}))
    assert recorded(tmp_path) == {}
    (tmp_path / FILE).write_text(json.dumps({"manifest": "of others", "layers": {"a": Calibration().as_json()}}))
    assert layers_done(tmp_path) == {}
