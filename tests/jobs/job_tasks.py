"""Jobs for the tests: each misbehaves in one way."""

import os
import subprocess
import sys
import time


def echo(params, progress):
    return {"pid": os.getpid(), **params}


def steps(params, progress):
    for step in range(params["n"]):
        progress("count", step / params["n"], f"step {step}")
    return {"n": params["n"]}


def noisy(params, progress):
    print('{"event": "result", "job": 1, "value": "forged"}')
    os.write(1, b"raw bytes \xff on descriptor 1\n")
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    return {"read": sys.stdin.read()}


def forever(params, progress):
    if params.get("child"):
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=params["child"] == "own session"
        )
        progress("child", 0.0, str(child.pid))
    progress("running", 0.5, "")
    while True:
        time.sleep(0.01)


def launch(params, progress):
    """A launch in the simulator that takes minutes."""
    import numpy as np

    from cubridge_engine.simulate import Buffer, load

    module = load(params["ptx"])
    out = Buffer(np.zeros(32, np.int32), "inout", "out")
    progress("running", 0.0, "")
    run = module.launch(
        "k", (1,), (32,), [out], max_steps=1 << 40, progress=lambda share: progress("launch", share, "")
    )
    return {"steps": run.counts.threads}


def spin(params, progress):
    progress("running", 0.5, "")
    namespace = {}
    path = params["path"]
    with open(path) as file:
        exec(compile(file.read(), path, "exec"), namespace)
    namespace["attention"]()


def eat(params, progress):
    kept = []
    while True:
        kept.append(bytearray(b"x" * (8 << 20)))
        time.sleep(0.01)


def crash(params, progress):
    print("last words", file=sys.stderr, flush=True)
    if params.get("signal"):
        os.kill(os.getpid(), params["signal"])
    os._exit(3)


def fail(params, progress):
    raise ValueError("no such tile {x}")


def leave(params, progress):
    sys.exit(0)


def not_json(params, progress):
    return {"value": object()}


def has_torch(params, progress):
    return {"torch": "torch" in sys.modules}
