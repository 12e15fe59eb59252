#!/usr/bin/env bash
# On the GPU machine, from the repository's root, after `scripts/device/fetch_wheels.sh` has filled wheels/: measures the environments.
# Usage: bench_envs.sh [OUT_FOLDER] [BATCH_SIZES...]
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-.}
shift || true
sizes=("${@:-}")
[[ -n "${sizes[0]}" ]] || sizes=(2048 8192 32768)
source scripts/device/setup.sh
options=()
for size in "${sizes[@]}"; do options+=(--num-envs "$size"); done
python3 -c "from tailsafe.cli import main; main()" bench envs --backend mjx "${options[@]}" --json | tee "$out/bench_envs.json"
