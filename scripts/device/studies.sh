# usage: source scripts/device/setup.sh; bash scripts/device/studies.sh MINUTES FOLDER
# On one GPU at once, under NVIDIA's MPS: every algorithm on $TASKS with five seeds (study benchmark; without TASKS on
# point-goal, TASKS=all on all six), and the 45 runs of risk-measures. Called again with the same folder it resumes: parts of
# under ten minutes. Logs, policies and results come back as $OUT/*.tgz.
minutes=$1 folder=$2
export PYTHONUNBUFFERED=1 XLA_PYTHON_CLIENT_PREALLOCATE=false CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mpslog
mkdir -p /tmp/mps /tmp/mpslog "$folder"/{benchmark,risk-measures}
nvidia-cuda-mps-control -d
echo "benchmark paper" > "$folder"/benchmark/study.txt
study() {
    log=$folder/$1.log; shift
    python3 -c "from tailsafe.cli import main; main()" study "$@" --scale paper --minutes "$minutes" >> "$log" 2>&1
    code=$?
    echo "$(basename "$log") ended with $code"
}
all=$(python3 -c "from tailsafe.algorithms.registry import ALGORITHMS; print(*ALGORITHMS)")
only=()
[ "${TASKS-}" = all ] || for task in ${TASKS-point-goal}; do only+=(--only "$task"); done
for algorithm in ${ALGORITHMS-$all}; do
    study "$algorithm" benchmark --out "$folder"/benchmark "${only[@]}" --only "$algorithm" &
    watched+=($!)
done
[ -n "${MEASURES-yes}" ] && { study measures risk-measures --out "$folder"/risk-measures & watched+=($!); }
(sleep 200; nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader; free -g | sed -n 2p) &
wait "${watched[@]}"
echo quit | nvidia-cuda-mps-control
for log in "$folder"/*.log; do echo "== $log"; grep -a "steps/s" "$log" | tail -n 1 | cut -c1-200; tail -n 3 "$log" | cut -c1-200; done
for name in benchmark risk-measures; do
    tar czf "$OUT/$name.tgz" -C "$folder" --exclude checkpoints --exclude tensorboard "$name"
done
tar czf "$OUT/logs.tgz" -C "$folder" $(cd "$folder" && ls *.log)
