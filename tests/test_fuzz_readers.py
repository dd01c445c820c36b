"""Whatever a file or an adapter brings, a reader gives a sentence or a right answer, and never another error."""

import copy
import gzip
import hashlib
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from parity import weights
from parity.compare import Row
from parity.errors import CannotRun, FixtureError, WeightsMissing
from parity.files import write_atomically
from parity.goldens import calibration, check, expected, manifests
from parity.goldens.judge import BOTH, Judge
from parity.goldens.store import file_name
from parity.layers import REGISTRY
from parity.runs import curves, spec, trace
from parity.runs.curves import Curve, Recorded
from parity.runs.trace_store import TraceStore
from port.environments import Catch
from port.storage import checkpoint
from port.train import CatchWorld, Trainer
from port.weights import read_npz
from tests import made
from tests.small_rule import AGENT, CONFIG, meta_params

fuzzed = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=75,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
few = settings(fuzzed, max_examples=20)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5)
PLAIN |= st.sampled_from([-1, 2**70, 1e308, "", "../..", "\0", "disco103", [], {}])
JSON = st.recursive(PLAIN, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3))


@st.composite
def edited(draw, tree):
    """A copy of a tree with some leaves or branches put out, or replaced by anything."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 2))):
        node = tree
        while node:
            key = draw(st.sampled_from(list(node) if isinstance(node, dict) else range(len(node))))
            if isinstance(node[key], dict | list) and node[key] and draw(st.integers(0, 4)):
                node = node[key]
            elif draw(st.booleans()):
                del node[key]
                break
            else:
                node[key] = draw(JSON)
                break
    return tree


@st.composite
def damaged(draw, content):
    """Bytes of which some are flipped, left out, doubled or others."""
    at, length = draw(st.integers(0, len(content))), draw(st.integers(0, 40))
    middle = draw(st.binary(max_size=12) | st.just(content[at : at + length] * 2) | st.just(b"\xff"))
    return draw(st.sampled_from([content[:at] + middle + content[at + length :], content[:at], middle]))


def as_json(tree):
    """JSON with all that Python's reader takes, and a digest that fits where there can be one."""
    try:
        return manifests.as_bytes(tree)
    except ValueError:
        return json.dumps(tree).encode()


def answer_or_sentence(read, errors, names):
    """What a reader gives; None where it gives a sentence, which has to be one and to name the file or its place."""
    try:
        return read()
    except errors as error:
        text = str(error)
        assert names in text and text.rstrip()[-1:] in ".?)" and "\n" not in text.strip(), text
        return None


# Goldens

GOLDEN = made.golden(vjp=1.0)


@pytest.fixture(scope="module")
def goldens(tmp_path_factory):
    root = tmp_path_factory.mktemp("goldens")
    return root, made.write(root, GOLDEN).manifest


def goldens_of(root):
    store = made.Store(root)
    return [check.load(store, layer, case) for layer in store.layers() for case in store.cases(layer)]


@fuzzed
@given(data=st.data())
def test_the_goldens_manifest(goldens, data):
    root, manifest = goldens
    content = data.draw(edited(manifest).map(as_json) | damaged(as_json(manifest)) | JSON.map(as_anything))
    write_atomically(root / "manifest.json", content)
    found = answer_or_sentence(lambda: goldens_of(root), (FixtureError, WeightsMissing), "")
    assert found is None or all(same(golden.outputs, GOLDEN.outputs) for golden in found)


def as_anything(tree):
    return json.dumps(tree).encode(errors="surrogatepass")


def same(some, others):
    return some.keys() == others.keys() and all(np.array_equal(some[name], others[name]) for name in some)


@fuzzed
@given(data=st.data())
def test_a_goldens_file(goldens, data):
    root, manifest = goldens
    write_atomically(root / "manifest.json", manifests.as_bytes(manifest))
    path = root / "golden" / file_name(made.LAYER)
    whole = made.layer_bytes([GOLDEN])
    inner = damaged(gzip.decompress(whole)).map(gzip.compress)
    content = data.draw(damaged(whole) | inner)
    write_atomically(path, content)
    found = answer_or_sentence(lambda: goldens_of(root), FixtureError, path.name)
    assert found is None or (content == whole and same(found[0].outputs, GOLDEN.outputs))


# Traces

SPEC = spec.preset("actor_critic").with_steps(3)
BYTES = np.zeros((3, 8), np.uint8)
COLUMNS = {"logs": np.zeros((3, 4)), "sketches": np.zeros((3, 8)), "digests": BYTES, "noise": BYTES}
TRACE = trace.Trace(SPEC, "float32", 0, np.ones((3, *SPEC.rollout_shape), np.uint8), **COLUMNS)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    store = TraceStore(tmp_path_factory.mktemp("traces"))
    store.begin({})
    store.write_params(SPEC, {"w": np.ones(3)})
    store.write(TRACE)
    return store.root, store.manifest


def traces_of(root):
    store = TraceStore(root)
    return [store.load(run, *one) for run in store.specs() for one in store.traces(run) if len(store.params(run))]


@fuzzed
@given(data=st.data())
def test_the_manifest_of_traces(traces, data):
    root, manifest = traces
    write_atomically(root / "manifest.json", data.draw(edited(manifest).map(as_json) | damaged(as_json(manifest))))
    found = answer_or_sentence(lambda: traces_of(root), FixtureError, "")
    assert found is None or all(np.array_equal(one.actions, TRACE.actions) for one in found)


ARRAYS = {**COLUMNS, "actions": trace.pack(TRACE.actions), "first": np.zeros(0)}
OTHERS = [np.zeros(0), np.zeros((3, 8), np.uint8), np.zeros(4), np.full(4, np.nan), np.zeros((2, 8)), np.zeros((3, 4))]


@fuzzed
@given(data=st.data())
def test_a_trace_with_a_digest_that_fits(traces, data):
    """A trace of another program, whose digest is right while its content is none."""
    root, manifest = traces
    arrays = {name: data.draw(st.sampled_from([x, x, x, *OTHERS]), label=name) for name, x in ARRAYS.items()}
    arrays.pop(data.draw(st.sampled_from([*ARRAYS, *["none"] * 6])), None)
    content = data.draw(st.just(save(arrays)) | damaged(trace.trace_bytes(TRACE)))
    manifest = copy.deepcopy(manifest)
    manifest["runs"][SPEC.name]["traces"][TRACE.name]["sha256"] = hashlib.sha256(content).hexdigest()
    write_atomically(root / "manifest.json", manifests.as_bytes(manifest))
    write_atomically(root / f"{TRACE.name}.safetensors", content)
    for one in answer_or_sentence(lambda: traces_of(root), FixtureError, TRACE.name) or ():
        shapes = [getattr(one, name).shape for name in ("logs", "sketches", "digests", "noise", "actions")]
        assert shapes == [(3, 4), (3, 8), (3, 8), (3, 8), (3, *SPEC.rollout_shape)]


# Curves

CURVE = Curve.of((58 * i, (True, i % 2), None if i < 2 else 0.5 / i) for i in range(1, 6))
ROWS = st.lists(st.lists(st.sampled_from(["1", "2", "58", "-1", "", "nan", "0.5", "1_0", "01", "0101", "1e999", "x"])))


@fuzzed
@given(st.binary() | damaged(curves.to_csv(CURVE)) | ROWS.map(lambda rows: "\n".join(map(",".join, rows)).encode()))
@example(f"{curves.HEADER}\n".encode())
@example(f"{curves.HEADER}\n1,-58,1,,1\n".encode())
def test_a_curve(content):
    found = answer_or_sentence(lambda: curves.from_csv(content, "the curve"), FixtureError, "the curve")
    assert found is None or (curves.to_csv(found) == content and len(found) and min(np.diff((0, *found.frames))) >= 0)


@fuzzed
@given(data=st.data())
def test_the_manifest_of_curves(tmp_path, data):
    entry = {"spec": curves.manifest_entry(SPEC), "seeds": {"0": hashlib.sha256(curves.to_csv(CURVE)).hexdigest()}}
    content = data.draw(edited({"curves": {SPEC.preset: entry}}).map(as_json) | JSON.map(as_json_of_any))
    write_atomically(tmp_path / "manifest.json", content)
    write_atomically(tmp_path / curves.file_name(SPEC.preset, 0), curves.to_csv(CURVE))
    found = answer_or_sentence(lambda: Recorded(tmp_path).curves(SPEC), FixtureError, "")
    assert found is None or (set(found) <= {0} and all(curve == CURVE for curve in found.values()))


def as_json_of_any(tree):
    return as_json(tree) if isinstance(tree, dict) else as_anything(tree)


# Calibration

HELD = {"comparisons": 3, "different": 0, "largest": 1.5, "counts": [1] * calibration.NUM_BINS}


@fuzzed
@given(data=st.data())
def test_the_calibration(goldens, data):
    root, manifest = goldens
    write_atomically(root / "manifest.json", manifests.as_bytes(manifest))
    whole = {"manifest": manifest["digest"], "layers": {made.LAYER: {"eagerly, float64, value": HELD}}}
    content = data.draw(edited(whole).map(as_anything) | damaged(as_anything(whole)) | JSON.map(as_anything))
    write_atomically(root / calibration.FILE, content)
    for held in (answer_or_sentence(lambda: calibration.recorded(root), FixtureError, calibration.FILE) or {}).values():
        assert len(held.counts) == calibration.NUM_BINS and math.isfinite(held.largest + sum(held.counts))


# Known divergences

ENTRY = {"layer": "values/retrace", "output": "q_target", "at_least": 0.1, "at_most": 5.0, "reason": "issue 12"}
OTHER = {"kind": "vpj", "dtype": "float16", "case": "terminal_*", "layer": "values/*", "output": "q_*", "at_most": 0.01}
ROW = Row("values/retrace", "plain", "q_target", "value", "float64", max_rel=0.5, equal=False)


def toml(value):
    """A value as TOML, or as what is none."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(x)}" for key, x in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


@fuzzed
@given(data=st.data())
def test_known_divergences(tmp_path, data):
    values = JSON | st.sampled_from([0, 1, "*"])
    change = data.draw(st.dictionaries(st.sampled_from([*ENTRY, *OTHER, "colour"]), values, max_size=2))
    table = {**ENTRY, **data.draw(st.sampled_from([{}, *({key: x} for key, x in OTHER.items())])), **change}
    text = "[[divergence]]\n" + "".join(f"{key} = {toml(value)}\n" for key, value in table.items())
    content = data.draw(st.just(text.encode(errors="surrogatepass")) | damaged(text.encode(errors="surrogatepass")))
    path = tmp_path / "known.toml"
    path.write_bytes(content)
    entries = answer_or_sentence(lambda: expected.load(path), CannotRun, "known.toml")
    for entry in entries or ():
        assert 0 <= entry.at_least <= entry.at_most > 0 and entry.layer in REGISTRY
        assert all(isinstance(getattr(entry, key), str) for key in ("output", "reason", "kind", "dtype", "case"))
        assert isinstance(expected.problems([ROW], [entry]), list)
        assert expected.unexpected([ROW], [entry]) in ([], [ROW])


# Checkpoints


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with a checkpoint, and its parts."""
    out = tmp_path_factory.mktemp("run")
    trainer = trainer_of(out)
    trainer.run(CONFIG.checkpoint_every)
    trainer.close()
    return out, (out / "checkpoint.safetensors").read_bytes(), trainer.settings()


def trainer_of(out):
    return Trainer(CatchWorld(Catch(4, 3), 2), AGENT, meta_params(), CONFIG, out=out)


@fuzzed
@given(data=st.data())
def test_a_checkpoint(run, data):
    out, whole, run_settings = run
    path = out / "fuzzed.safetensors"
    about = {"format": checkpoint.FORMAT, "numbers": {"step": 1}, "settings": run_settings}
    texts = edited(about).map(json.dumps) | damaged(json.dumps(about).encode()).map(lambda x: x.decode("latin-1"))
    odd = texts.map(lambda text: save({"x": np.zeros(2)}, {checkpoint.ABOUT: text}))
    deep = save({"x": np.zeros(2)}, {checkpoint.ABOUT: "[" * 10**5})
    content = data.draw(damaged(whole) | odd | st.sampled_from([save({}), deep]))
    path.write_bytes(content)
    found = answer_or_sentence(lambda: checkpoint.load(path, run_settings), ValueError, path.name)
    assert found is None or (found.settings == json.loads(json.dumps(run_settings)) and isinstance(found.numbers, dict))


@few
@given(data=st.data())
def test_a_trainer_takes_up_no_run_that_its_checkpoint_does_not_hold(run, data):
    out, whole, run_settings = run
    path = out / "checkpoint.safetensors"
    path.write_bytes(whole)
    kept = checkpoint.load(path, run_settings)
    numbers = data.draw(edited(kept.numbers) | st.just(kept.numbers))
    name, others = data.draw(st.sampled_from(sorted(kept.tensors))), [torch.zeros(0), torch.zeros(3, dtype=torch.uint8)]
    tensors = {**kept.tensors, name: data.draw(st.sampled_from([kept.tensors[name], *others]))}
    checkpoint.save(path, checkpoint.Checkpoint(tensors, numbers, run_settings))
    trainer = answer_or_sentence(lambda: trainer_of(out), ValueError, path.name)
    if trainer:
        assert isinstance(trainer.step, int) and trainer.step >= 0
        trainer.close()


# Weights


@fuzzed
@given(data=st.data())
def test_weights(tmp_path, data):
    whole = (tmp_path / "w.npz", {"w": np.arange(6, dtype=np.float32), "b": np.ones((2, 1), np.float32)})
    np.savez(whole[0], **whole[1])
    content = whole[0].read_bytes()
    wanted = weights.Expected(hashlib.sha256(content).hexdigest(), len(content), 2, 8, weights.digest(whole[1]))
    whole[0].write_bytes(data.draw(damaged(content)))
    found = answer_or_sentence(lambda: weights.read_verified(whole[0], wanted), weights.WeightsError, "w.npz")
    assert found is None or same(found, whole[1])
    answer_or_sentence(lambda: read_npz(whole[0]), ValueError, "w.npz")


# Answers of adapters

X = GOLDEN.inputs["x"]
ODD = [
    *(None, 3, "text", [1.0], (), {}, object(), np.float64(1.0), np.ma.masked_array(X, X == X)),
    *(X.astype(kind) for kind in ("float16", "complex128", "int64", "bool", ">f8", "object", "U5")),
    *(np.array(None), np.zeros(0), np.zeros((1, *X.shape)), X * np.nan, X * np.inf, X + 1e-9, np.zeros(3, "M8[s]")),
    *(np.zeros(X.shape, [("a", float)]), X[..., ::-1].copy(), X.copy(), X.astype(np.float32), -X.copy()),
]
NAMES = st.sampled_from(["out", "x", "more", "", None, 3, ("out",), "\ud800"])
ANSWERS = st.dictionaries(NAMES, st.sampled_from(ODD), max_size=3) | st.sampled_from(ODD)


class Odd:
    """Gives odd answers."""

    name, description, layers = "odd", "", {made.LAYER}

    def __init__(self, answers, pair):
        self.answers = iter(answers)
        if pair is not None:
            self.run_and_vjp = lambda *_: pair

    def run(self, *_):
        return next(self.answers, None)

    vjp = run


@settings(fuzzed, max_examples=150)
@given(st.lists(ANSWERS, max_size=4), st.none() | st.tuples(ANSWERS, ANSWERS) | ANSWERS)
def test_answers_of_an_adapter(answers, pair):
    rows = list(Judge(Odd(answers, pair)).rows(GOLDEN))
    for row in rows:
        assert row.sentence() and json.dumps(row.as_json())
        if row.equal:
            assert (row.kind, row.output) in (("value", "out"), ("vjp", "x"))
    assert {(row.kind, row.output, row.dtype) for row in rows} >= {
        (kind, output, dtype) for kind, output in (("value", "out"), ("vjp", "x")) for dtype in BOTH
    }
