# usage: learn.sh SECONDS FOLDER, from session.sh, which packs FOLDER without checkpoints and ends this at its time.
# ---- The training runs go here: one `train` line each, side by side. ----
seconds=$1 folder=$2
mkdir -p "$folder"
began=$SECONDS

# train NAME ARGUMENTS...: a run, or several with --seeds, that is asked to stop and save itself 15 seconds before the end. It
# does so after the next row of its log: rows must come every few seconds (log_every, in updates).
train() {
    local name=$1; shift
    timeout --signal=TERM --kill-after=12 $((seconds - (SECONDS - began) - 15)) \
        python3 -c "from tailsafe.cli import main; main()" train "$@" --preset gpu --backend "${BACKEND:-warp}" \
        --log csv --out "$folder/$name" > "$folder/$name.log" 2>&1 &
}

train point-goal point-goal --seeds 5 --steps 1000000000 --set num_envs=4096 --set chunk_steps=16 --set log_every=4
wait
for log in "$folder"/*.log; do echo "== $log"; tail -n 2 "$log" | cut -c1-300; done
