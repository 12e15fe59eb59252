#!/usr/bin/env bash
# One GPU call of SECONDS (default 530) on engine warp, from the repository's root, after wheels/first was brought in a call
# before: environments and training measured, the engines compared, and what learn.sh trains. Results go to $OUT as they come:
# envs.jsonl, training.jsonl, profile.txt, compare.jsonl, tests.txt (in the end results.tgz), learn.tgz, log.txt. The
# variables below make it small.
limit=${1:-530}
: "${OUT:?}" "${ENV_STEPS:=40}" "${ROUNDS:=2}" "${UPDATES:=2}" "${STATES:=4096}" "${COMPILED_BY:=110}" "${MEASURED_BY:=230}" "${LEARN_UNTIL:=$((limit - 15))}"
: "${ENVS:=point-goal:8192:32768 car-goal:16384:32768 point-button:16384:32768 car-button:16384:32768 quadruped:8192:32768 biped:8192:32768}"
: "${CASES:=point-goal:1:num_envs=16384:chunk_steps=16 point-goal:5:num_envs=1024:chunk_steps=16 \
point-goal:1:num_envs=16384:chunk_steps=16:precision=bf16 car-goal:1:num_envs=16384:chunk_steps=16 quadruped:1:num_envs=16384}"
: "${PROFILE:=point-goal 2 /tmp/profile num_envs=16384 chunk_steps=16}"
logs=$(mktemp -d) meeting=$(mktemp -d) device=scripts/device
: > "$logs/mps.json"
exec 3>&1
say() { printf '%4d s  %s\n' "$SECONDS" "$*" | tee -a "$OUT/log.txt" >&3; }

# run NAME UNTIL COMMAND...: at most until that second of this session; one that failed says how its log ended.
run() {
    local name=$1 until=$2; shift 2
    timeout --kill-after=3 $((until > SECONDS ? until - SECONDS : 1)) "$@" 2> "$logs/$name.log"
    local code=$?
    touch "$meeting/$name.ready"
    say "$name ended with $code$([ $code = 0 ] || { echo; tail -n 6 "$logs/$name.log" | cut -c1-400; })"
    return $code
}
finish() {
    { for log in "$logs"/*.log; do echo "== $log"; tail -n 25 "$log" | cut -c1-300; done; } >> "$OUT/log.txt"
    [ -d /tmp/learn ] && tar czf "$OUT/learn.tgz" -C /tmp --exclude checkpoints --exclude tensorboard learn
    [ -n "$mps" ] && echo quit | CUDA_MPS_PIPE_DIRECTORY=/tmp/mps nvidia-cuda-mps-control
    say "end"
    # At most eight files come back.
    (cd "$OUT" && tar czf results.tgz ./*.jsonl ./*.txt && rm -f ./*.jsonl profile.txt tests.txt)
}
trap finish EXIT

# (a) Set-up, and a daemon that lets processes share the GPU: for those alone that are told its folder.
source $device/setup.sh
export PYTHONUNBUFFERED=1 XLA_PYTHON_CLIENT_PREALLOCATE=false TAILSAFE_CACHE=/tmp/tailsafe/jax XDG_STATE_HOME=/tmp/tailsafe/state
[ -e "$site/warp/bin/warp.so" ] || { say "the parts of Warp's library are not together: $(ls "$home/parts")"; exit 1; }
mkdir -p /tmp/mps /tmp/mpslog
command -v nvidia-cuda-mps-control > /dev/null && CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mpslog nvidia-cuda-mps-control -d && mps=/tmp/mps
# Is it true at all? Beside the compilation of everything else; a wrong engine ends the session at once.
run gate 100 python3 $device/compare_engines.py point-goal 2048 > "$logs/gate.json" &
gate=$!
say "set up; kernels here: $(find "$WARP_CACHE_PATH" -name "*.cubin" | wc -l); MPS: ${mps:-no}"

# (b), (c) All programs compile side by side. Then environments measure one at a time, then training.
export MEETING_ENDS=$(($(date +%s) + COMPILED_BY - SECONDS)) MEETING_TURN=60 ROUNDS UPDATES
cases=($CASES) envs=($ENVS)
PROCESSES=$((${#cases[@]} + ${#envs[@]} + 1))
for case in "${envs[@]}"; do
    IFS=: read -r task sizes <<< "$case"
    MEETING=$meeting PROCESSES=$PROCESSES run "envs-$task" "$MEASURED_BY" \
        python3 $device/bench_envs.py warp "$task" "$ENV_STEPS" ${sizes//:/ } >> "$OUT/envs.jsonl" &
    measuring+=($!)
done
for number in "${!cases[@]}"; do
    MEETING=$meeting PROCESSES=$PROCESSES AFTER=$meeting/envs run "training-$number" "$MEASURED_BY" \
        python3 $device/bench_training.py "${cases[$number]}" >> "$OUT/training.jsonl" &
    training+=($!)
done
MEETING=$meeting PROCESSES=$PROCESSES AFTER=$meeting/training run profile "$((MEASURED_BY + 20))" \
    python3 $device/profile_training.py $PROFILE > "$OUT/profile.txt" &
profiling=$!
[ -n "$mps" ] && CUDA_MPS_PIPE_DIRECTORY=$mps run mps "$COMPILED_BY" python3 $device/bench_envs.py warp point-goal 5 256 > "$logs/mps.json" &
sharing=$!
# A batch as large as this one was wrong once, where small ones were right.
wait $gate
case $? in
    124 | 137) say "whether the engine is right is not known yet: no answer in time" ;;
    0) cut -c1-600 "$logs/gate.json"
        python3 -c 'import json, sys; row = json.load(open(sys.argv[1])); sys.exit(row["unexplained"] > 0.05 * row["states"])' \
            "$logs/gate.json" || wrong=yes ;;
    *) wrong=yes ;;
esac
[ -z "$wrong" ] || { say "the engine is wrong"; kill $(jobs -p); exit 1; }
# (e) Training compiles meanwhile, and waits for the file `measured`.
wait $sharing
say "probe done"
[ -s "$logs/mps.json" ] && export CUDA_MPS_PIPE_DIRECTORY=$mps
run learn "$LEARN_UNTIL" bash $device/learn.sh $((LEARN_UNTIL - SECONDS)) /tmp/learn "$meeting/measured" &
learning=$!
wait "${measuring[@]}"
touch "$meeting/envs"
cat "$OUT/envs.jsonl"
wait "${training[@]}"
touch "$meeting/training"
cat "$OUT/training.jsonl"
wait $profiling
touch "$meeting/measured"
say "measured; kernels here: $(find "$WARP_CACHE_PATH" -name "*.cubin" | wc -l); a probe under MPS: $(cat "$logs/mps.json")"

# (d) Is it true? Beside (e), which goes on until the end.
for case in "${envs[@]}"; do
    run "compare-${case%%:*}" $((LEARN_UNTIL - 5)) nice python3 $device/compare_engines.py "${case%%:*}" "$STATES" >> "$OUT/compare.jsonl" &
    checking+=($!)
done
test_one() { nice python3 -m pytest -q -p no:cacheprovider -o addopts= -o filterwarnings=default -rA --tb=short "$@"; }
run tests $((LEARN_UNTIL - 5)) bash -c "$(declare -f test_one); for name in point-goal car-goal point-button car-button; do test_one \
    \"tests/test_recordings.py::test_warp_steps_like_the_original[\$name]\" & done; test_one tests/physics/test_warp_engine.py; wait" > "$OUT/tests.txt" &
checking+=($!)
wait "${checking[@]}"
say "compared"
cut -c1-700 "$OUT/compare.jsonl"
grep -E "^(PASSED|FAILED|ERROR|[0-9]+ (passed|failed))|after one step|clean" "$OUT/tests.txt" | cut -c1-300
wait $learning
say "learned"
