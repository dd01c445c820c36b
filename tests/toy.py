"""A toy port in plain NumPy, of five layers, with one mistake: Retrace takes its weights one step too late."""

import numpy as np


def signed_hyperbolic(inputs, settings, dtype):
    x = inputs["x"]
    return {"out": (np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + dtype_of(dtype)(1e-3) * x).astype(dtype)}


def dtype_of(name):
    return getattr(np, name)


def log_softmax(x):
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def kl(inputs, settings, dtype):
    log_p, log_q = log_softmax(inputs["p_logits"]), log_softmax(inputs["q_logits"])
    return {"out": (np.exp(log_p) * (log_p - log_q)).sum(-1).astype(dtype)}


def update(inputs, settings, dtype):
    decay, values = settings["decay"], inputs["values"]
    new = {
        "state/moment1": decay * inputs["state/moment1"] + (1 - decay) * values.mean(),
        "state/moment2": decay * inputs["state/moment2"] + (1 - decay) * np.square(values).mean(),
        "state/decay_product": inputs["state/decay_product"] * decay,
    }
    return {name: np.asarray(value, dtype) for name, value in new.items()}


def lookup(inputs, settings, dtype):
    index = inputs["index"][..., None, None].astype(np.int64)
    return {"out": np.take_along_axis(inputs["table"], index, axis=2)[:, :, 0].copy()}


def retrace(inputs, settings, dtype, late=1):
    rewards, v = inputs["rewards"], inputs["target_values"]
    steps = len(rewards)
    q = np.take_along_axis(inputs["target_q_values"][:-1], inputs["actions"][..., None].astype(np.int64), 2)[..., 0]
    c = settings["lambda"] * np.minimum(inputs["rho"], 1)
    d = settings["discount"] * inputs["continues"]
    target = rewards[-1] + d[-1] * v[-1]
    targets = [target]
    for t in range(steps - 2, -1, -1):
        at = min(t + 1 + late, steps - 1)
        target = rewards[t] + d[t] * (v[t + 1] + c[at] * (target - q[at]))
        targets.append(target)
    return {"q_target": np.stack(targets[::-1]).astype(dtype)}


class Toy:
    name = "toy"
    description = "five layers in NumPy"

    def __init__(self, **layers):
        self.layers = {
            "ops/signed_hyperbolic": signed_hyperbolic,
            "ops/lookup": lookup,
            "ops/kl": kl,
            "moving_average/update": update,
            "values/retrace": retrace,
            **layers,
        }

    def run(self, layer, inputs, settings, dtype):
        return self.layers[layer](inputs, settings, dtype)

    def vjp(self, layer, inputs, settings, dtype, cotangents, wrt):
        raise NotImplementedError


implementation = Toy()


def right_retrace(inputs, settings, dtype):
    return retrace(inputs, settings, dtype, late=0)


right = Toy(**{"values/retrace": right_retrace})
