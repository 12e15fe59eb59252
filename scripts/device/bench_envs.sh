# Run on the GPU machine from the repository's root: all four tasks on engine mjx at three batch sizes each, measured in control
# steps STEPS to 2 STEPS after a reset (default 60). Writes $OUT/envs.jsonl.
source scripts/device/setup.sh
export XLA_PYTHON_CLIENT_PREALLOCATE=false MEETING=$(mktemp -d) PROCESSES=4
steps=${STEPS:-60}
measure() { python3 scripts/device/bench_envs.py "$@" 2>>"$OUT/errors.log" | tee -a "$OUT/envs.jsonl"; }
measure point-goal "$steps" 2048 8192 16384 &
measure point-button "$steps" 2048 8192 16384 &
measure car-goal "$steps" 1024 2048 4096 &
measure car-button "$steps" 1024 2048 4096 &
wait
tail -5 "$OUT/errors.log"
