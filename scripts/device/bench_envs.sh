# Run on the GPU machine from the repository's root: all six tasks on engine BACKEND (default warp) at three batch sizes each,
# measured in control steps STEPS to 2 STEPS after a reset (default 60). Writes $OUT/envs.jsonl.
source scripts/device/setup.sh
export XLA_PYTHON_CLIENT_PREALLOCATE=false MEETING=$(mktemp -d) PROCESSES=6
steps=${STEPS:-60}
measure() { python3 scripts/device/bench_envs.py "${BACKEND:-warp}" "$@" 2>>"$OUT/errors.log" | tee -a "$OUT/envs.jsonl"; }
measure point-goal "$steps" 8192 16384 32768 &
measure point-button "$steps" 8192 16384 32768 &
measure car-goal "$steps" 4096 16384 32768 &
measure car-button "$steps" 4096 8192 16384 &
measure quadruped "$steps" 4096 8192 16384 &
measure biped "$steps" 4096 8192 16384 &
wait
tail -5 "$OUT/errors.log"
