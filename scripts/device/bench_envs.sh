#!/usr/bin/env bash
# On the GPU machine, from the repository's root, after `scripts/device/fetch_wheels.sh` has filled wheels/: unpacks them beside
# the machine's own packages and measures the environments. Usage: bench_envs.sh [OUT_FOLDER] [BATCH_SIZES...]
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-.}
shift || true
sizes=("${@:-}")
[[ -n "${sizes[0]}" ]] || sizes=(2048 8192 32768)
site=$(mktemp -d)
for wheel in wheels/*.whl; do
  python3 -m zipfile -e "$wheel" "$site"
done
# The machine's own JAX comes first; the unpacked packages only fill what is missing.
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}:$site"
options=()
for size in "${sizes[@]}"; do options+=(--num-envs "$size"); done
python3 -c "from tailsafe.cli import main; main()" bench envs --backend mjx "${options[@]}" --json | tee "$out/bench_envs.json"
