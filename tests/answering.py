"""A program for `cmd:` that misbehaves as its first argument says; the second one is a log of its pids."""

import json
import os
import signal
import sys
import time

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load, save

MODE, LOG = sys.argv[1], sys.argv[2]
AWKWARD = "ops/kl"  # the layer at which it misbehaves; the other one is right
CHOOSY = {"choosy": {"settings": ""}}
LAYERS = f"ops/signed_hyperbolic {AWKWARD}"


def metadata_of(frame):
    path = f"{LOG}.{os.getpid()}"
    with open(path, "wb") as file:
        file.write(frame)
    with safe_open(path, "numpy") as file:
        return file.metadata()


def answer(tensors, metadata=None):
    frame = save(tensors, metadata)
    sys.stdout.buffer.write(len(frame).to_bytes(8, "little") + frame)
    sys.stdout.buffer.flush()


def hang():
    os.fork()  # what it has started must end with it
    time.sleep(600)


def hang_apart():
    if os.fork() == 0:
        os.setsid()  # it keeps the pipes, and is not ended with the program
        time.sleep(5)
    else:
        time.sleep(600)


def write(content):
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def after_the_answer():
    answer({"out": np.zeros((5, 3))})
    write(b"done\n")


def leave(code):
    print("no such table", file=sys.stderr, flush=True)
    os._exit(code)


MISBEHAVE = {
    **dict.fromkeys(("right", "choosy"), lambda: answer({"out": np.zeros((5, 3))})),
    "signal": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: leave(3),
    "once": lambda: (answer({"out": np.zeros((5, 3))}), leave(0)),
    "exit_0": lambda: leave(0),
    "hang": hang,
    "hang_apart": hang_apart,
    "text": lambda: write(b"computing ops/kl ...\n"),
    "no_tensors": lambda: write((5).to_bytes(8, "little") + b"hello"),
    "bad_header": lambda: write((24).to_bytes(8, "little") + (16).to_bytes(8, "little") + b'{"out": 7}      '),
    "half": lambda: (write((800).to_bytes(8, "little") + b"x" * 30), leave(1)),
    "closed": lambda: (os.close(1), hang()),
    "more": after_the_answer,
    "error": lambda: answer({}, {"error": "no table of 18 actions"}),
}


def main():
    with open(LOG, "a") as file:
        file.write(f"{os.getpid()}\n")
    while length := sys.stdin.buffer.read(8):
        frame = sys.stdin.buffer.read(int.from_bytes(length, "little"))
        request = metadata_of(frame)
        if request["call"] == "hello":
            if MODE == "no_hello":
                leave(4)
            answer({}, {"name": "answering", "layers": LAYERS, "optional": "ops/kl=log/*,more", **CHOOSY.get(MODE, {})})
        elif request["call"] == "supports":
            answer({}, {"unsupported": "only three actions"} if json.loads(request["settings/A"]) != 3 else {})
        elif request["layer"] == AWKWARD:
            MISBEHAVE[MODE]()
        else:
            x = load(frame)["x"]
            small = np.asarray(1e-3, request["dtype"])
            answer({"out": np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + small * x})


main()
