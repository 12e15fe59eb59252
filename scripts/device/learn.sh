# usage: learn.sh SECONDS FOLDER GATE, from session.sh, which packs FOLDER without checkpoints. Runs compile at once, and go on
# when the file GATE is there. ---- The training runs go here, side by side. ----
seconds=$1 folder=$2
mkdir -p "$folder"
export LEARN_ENDS=$(($(date +%s) + seconds - 20))

# train NAME ARGUMENTS...: of learn.py.
train() {
    local name=$1; shift
    timeout --kill-after=5 "$seconds" $on python3 scripts/device/learn.py "$folder/$name" "$@" > "$folder/$name.log" 2>&1 &
}

# Preset gpu with five seeds of a task; the paper's budget with the laptop's settings, shorter chunks of more environments.
gpu="num_envs=1024 chunk_steps=16 kl_decay=600 margin=0.05 validation_every=1600000 validation_episodes=1024 log_every=4"
tasks="point-goal car-goal"
[ -n "$CUDA_MPS_PIPE_DIRECTORY" ] || tasks=  # processes that cannot share the GPU only wait for each other
for task in $tasks; do GATE=$3 train "$task" "$task" 5 $gpu; done
GATE=$3 PRESET=laptop train paper point-goal 5 total_steps=5000000 num_envs=256 chunk_steps=16 validation_every=500000 \
    validation_episodes=512

# Preset laptop on one core each.
core=6
laptop() {
    local name=$1 seed
    shift
    for seed in 0 1 2; do
        core=$((core + 1))
        on="taskset -c $core" JAX_PLATFORMS=cpu BACKEND=mujoco PRESET=laptop train "$name-$seed" point-goal 1 seed=$seed "$@"
    done
}
laptop base
laptop proportional proportional=0.8
laptop rows batch_chunks=4 critic_minibatches=32
wait
for log in "$folder"/*.log; do echo "== $log"; tail -c 300 "$log" | tail -n 2; done
