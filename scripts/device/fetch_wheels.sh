#!/usr/bin/env bash
# Downloads what a GPU machine without network needs beside its own JAX and NumPy: MuJoCo, MJX, Gymnasium, what
# runs and tests import, and the packages under them, as wheels for CPython 3.12 on Linux x86-64, into wheels/ (git-ignored).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
mkdir -p wheels
"$python" -m pip download --quiet --no-deps --dest wheels --only-binary=:all: \
  --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
  --platform manylinux2014_x86_64 --platform any \
  mujoco==4.0.0 mujoco-core==4.0.0 mujoco-mjx==3.17.0 gymnasium trimesh etils farama-notifications cloudpickle \
  importlib-resources zipp fsspec pyyaml safetensors tensorboardx hypothesis sortedcontainers
du -sh wheels
