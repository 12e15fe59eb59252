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
# MuJoCo Warp's kernels. Of its wheel the GPU needs neither the CPU's compiler nor one large file: the library is compressed and
# cut into parts that can be brought one after the other, and setup.sh joins them.
kernels=$(mktemp -d)
"$python" -m pip download --quiet --no-deps --dest "$kernels" --only-binary=:all: --platform manylinux_2_28_x86_64 \
  --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 --python-version 3.12 warp-lang==1.18.0
"$python" -m zipfile -e "$kernels"/*.whl "$kernels/site"
rm -f "$kernels"/site/warp/bin/warp-clang.so wheels/warp-*
xz -4 --threads=0 --stdout "$kernels/site/warp/bin/warp.so" | split --bytes=28M - wheels/warp-library.part-
rm "$kernels/site/warp/bin/warp.so"
tar --create --xz --file wheels/warp-rest.tar.xz --directory "$kernels/site" .
rm -r "$kernels"
du -sh wheels
