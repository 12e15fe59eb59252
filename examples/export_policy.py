"""A policy for other programs: one ONNX file, played here without tailsafe. `pip install onnx onnxruntime`

python examples/export_policy.py
tailsafe export runs/a --format onnx
"""

import numpy as np
import onnxruntime
from own_environment import IcyRoad

import tailsafe as ts


def main():
    constraint = ts.Constraint("slip", ts.CVaR(0.75), limit=3.0, unit="discounted")
    run = ts.train(ts.TrainConfig(task=IcyRoad, constraints=[constraint], total_steps=100_000))
    exported = ts.export(run.folder, format="onnx")
    print(f"{exported.path}: differs from JAX by at most {exported.largest_difference:.1g}")

    # Normaliser, network, squashing and the bounds of actions are in the file.
    session, rng = onnxruntime.InferenceSession(exported.path), np.random.default_rng(0)
    env = IcyRoad()
    observation, _ = env.reset(seed=0)
    ended, reward = False, 0.0
    while not ended:
        noise = rng.normal(size=(1, 1)).astype(np.float32)  # zeros: the likeliest action
        (action,) = session.run(["action"], {"observation": observation[None], "noise": noise})
        observation, earned, terminated, truncated, _ = env.step(action[0])
        reward, ended = reward + earned, terminated or truncated
    print(f"one drive: {reward:.1f}")


if __name__ == "__main__":
    main()
