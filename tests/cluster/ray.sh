#!/bin/bash
# Sweeps through a real Ray: a cluster of two nodes, both processes of this host. A cell takes 2 CPUs, so one trains on
# each node.
source "$(dirname "$0")/common.sh"
port=6391
launcher=(hydra/launcher=ray_tasks hydra.launcher.ray.remote.num_gpus=0 hydra.launcher.ray.init.address=127.0.0.1:$port)
local=(hydra.launcher.ray.init.address=null)
sweep=
export RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0
export HOME=$work RAY_TMPDIR=$work/local # a Ray that a sweep starts keeps a token in ~/.ray, and its files in /tmp/ray

# A node is its raylet, which starts the workers.
start_node() { # argument...: prints the process id of the new raylet
    raylets >"$work/raylets"
    timeout 120 "$PYTHON" -c 'from ray.scripts.scripts import main; main()' start "$@" --num-cpus=2 --num-gpus=0 \
        --object-store-memory=100000000 >"$work/start.log" 2>&1 || { cat "$work/start.log" >&2; return 1; }
    raylets | grep -v -x -f "$work/raylets"
}
raylets() { pgrep -f "/raylet/raylet .*$work" || true; }
ray_processes() { pgrep -f "^[^ ]*(python[^ ]* .*|raylet/raylet .*|gcs/gcs_server .*)$work/ray" || true; }
up() {
    rm -rf "$HOME/.ray" # a token of a Ray that a sweep has started
    head=$(start_node --head --port=$port --include-dashboard=false --temp-dir="$work/ray")
    other=$(start_node --address=127.0.0.1:$port)
}
kill_node() { kill -KILL "$1" $(pgrep -P "$1" || true) || true; } # raylet: with all that it has started, at once
down() {
    for raylet in $(raylets); do kill_node "$raylet"; done
    for process in $(ray_processes); do kill -KILL "$process" || true; done
    sleep 2
}
trap '[ -z "$sweep" ] || kill -KILL -- "-$sweep" 2>/dev/null || true; down; rm -rf "$work"' EXIT
trains_on() { for process in $(training); do [ "$(ps -o ppid= -p "$process")" -ne "$1" ] || echo "$process"; done | head -1; }
nothing_left() { # of the processes that trained, of the sweep's own, and of a Ray that it has started
    [ -z "$(training)" ] && [ -z "$(pgrep -g "$sweep")" ] && [ -z "$(pgrep -f '^ray::attempt')" ] &&
        [ -z "$(pgrep -f "raylet/raylet .*$work/local")" ]
}

up
start plain task.seq_len=16,24,32,40 trainer.epochs=15
ends_well 4

start killed_once task.seq_len=16,24 trainer.epochs=30
within 120 trains 2
kill -KILL "$(trains_on "$other")"
ends_well 2 # Ray tried the killed one again

start killed task.seq_len=16,24 trainer.epochs=30 hydra.launcher.ray.remote.max_retries=0
within 120 trains 2
kill -KILL "$(trains_on "$other")"
ends_with 1 '^FAILED attn icr.*WorkerCrashedError'
check "the other cell is trained" has_finished 1

for number in INT TERM; do
    start "stopped_$number" task.seq_len=16,24 trainer.epochs=100000
    within 120 trains 2
    kill -$number -- "$([ $number = TERM ] || echo -)$sweep" # SIGINT for the group, as by Ctrl-C
    ends_with $((128 + $(kill -l $number))) "stopped by SIG$number: the same command goes on"
done

start killed_sweep task.seq_len=16,24 trainer.epochs=100000
within 120 trains 2
kill -KILL "$sweep"
ends_with 137 'to run'

start no_gpu task.seq_len=16,24 trainer.epochs=3 hydra.launcher.ray.remote.num_gpus=1
within 60 grep -q 'no node of the Ray cluster has 2 CPU, 1 GPU' "$work/$name.out"
kill -TERM "$sweep"
ends_with 143 'no node of the Ray cluster has 2 CPU, 1 GPU'

start node_killed task.seq_len=16,24,32 trainer.epochs=30
within 120 trains 2
kill_node "$other"
ends_well 3 # on the node that is left

down
up
start head_killed task.seq_len=16,24,32 trainer.epochs=100000
within 120 trains 2
kill_node "$head"
for process in $(pgrep -f "gcs/gcs_server .*$work/ray"); do kill -KILL "$process"; done
ends_with 1 '^error: Ray did not start.*the same command goes on'
down

start local task.seq_len=16,24 trainer.epochs=10 "${local[@]}"
ends_well 2
for number in TERM KILL; do
    start "local_$number" task.seq_len=16,24 trainer.epochs=100000 "${local[@]}"
    within 120 trains 1
    kill -$number "$sweep"
    ends_with $((128 + $(kill -l $number))) 'to run'
done

echo "$failures checks failed"
exit $((failures > 0))
