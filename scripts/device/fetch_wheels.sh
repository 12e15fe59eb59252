#!/usr/bin/env bash
# Downloads what a GPU machine without network needs beside its own JAX and NumPy, for CPython 3.12 on Linux x86-64, into the
# git-ignored folders wheels/first and wheels/second: MuJoCo, MJX, Gymnasium, what runs and tests import, and MuJoCo Warp. They
# travel in two calls, one folder each: a call takes 64 MiB with the working tree, and Warp's library is the larger part.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
work=$(mktemp -d)
platforms=(--platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64
  --platform manylinux2014_x86_64 --platform any --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none)
"$python" -m pip download --quiet --no-deps --dest "$work" --only-binary=:all: "${platforms[@]}" \
  mujoco==4.0.0 mujoco-core==4.0.0 mujoco-mjx==3.17.0 gymnasium trimesh etils farama-notifications cloudpickle \
  importlib-resources zipp fsspec pyyaml safetensors tensorboardx hypothesis sortedcontainers warp-lang==1.18.0
for wheel in "$work"/*.whl; do "$python" -m zipfile -e "$wheel" "$work/site"; done
cd "$work/site"
rm -r mujoco/{doc,include,testdata,sysid} mujoco/mjx/{test_data,integration_test} warp/{tests,examples}
# Of Warp's library the GPU needs neither the CPU's compiler nor the machine code for other GPUs.
"$python" "$OLDPWD/scripts/device/slim_warp.py" warp/bin/warp.so "$work/warp.so" 90
rm warp/bin/warp{,-clang}.so
cd "$OLDPWD"
rm -rf wheels/first wheels/second
mkdir -p wheels/first wheels/second
tar --create --xz --file wheels/first/site.tar.xz --directory "$work/site" .
xz --x86 --lzma2=preset=6,dict=64MiB --stdout "$work/warp.so" > "$work/library"
head --bytes=24M "$work/library" > wheels/first/warp-library.part-first
tail --bytes=+$((24 * 1024 * 1024 + 1)) "$work/library" > wheels/second/warp-library.part-last
rm -r "$work"
# What compile_kernels.py made, if it was run before: KERNELS=FOLDER. Neither sources nor what was linked are needed.
[ -z "${KERNELS-}" ] || tar --create --xz --file wheels/first/kernels.tar.xz --directory "$KERNELS" --exclude '*.cu' --exclude lto --exclude '*_p[0-9]*_t[0-9]*' .
du -sh wheels/*
