# usage: learn.sh SECONDS FOLDER GATE, from session.sh, which packs FOLDER without checkpoints. Runs compile at once, and go on
# when the file GATE is there. ---- The training runs go here, side by side. ----
seconds=$1 folder=$2
mkdir -p "$folder"
export LEARN_ENDS=$(($(date +%s) + seconds - 25)) GATE=$3

# train NAME ARGUMENTS...: of learn.py.
train() {
    local name=$1; shift
    timeout --kill-after=5 "$seconds" python3 scripts/device/learn.py "$folder/$name" "$@" > "$folder/$name.log" 2>&1 &
}

# Preset gpu with five seeds of each navigation task.
gpu="num_envs=1024 chunk_steps=16 kl_decay=600 margin=0.05 validation_every=1600000 validation_episodes=512 log_every=4"
for task in ${LEARN_TASKS-point-goal car-goal point-button car-button}; do train "$task" "$task" 5 $gpu; done

# Finite problems on idle cores: the defaults, five seeds.
core=9
for problem in gamble "toll or gamble" "two prices"; do
    core=$((core + 2)) out="$folder/known-${problem// /-}"
    JAX_PLATFORMS=cpu CUDA_VISIBLE_DEVICES= timeout --kill-after=5 "$seconds" nice taskset -c "$((core - 1)),$core" python3 -c \
        "from tailsafe.cli import main; main()" study known-optimum --scale paper --only srcpo --only "$problem" --out "$out" \
        --minutes "$(((seconds - 40) / 60))" > "$out.log" 2>&1 &
done
wait
for log in "$folder"/*.log; do echo "== $log"; tail -c 300 "$log" | tail -n 2; done
