# Sweeps in the background, and what is checked of them: for slurm.sh and ray.sh, which set `launcher`. They are not
# part of the suite; runs are CPU-only, and daemons and files are gone at the end. From the root of the repository, with
# the packages of the extra `cluster`: PYTHON=path/of/python tests/cluster/slurm.sh
set -euo pipefail

PYTHON=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
host=$(hostname -s)
failures=0
trap '{ echo "NOT OK: line $LINENO: $BASH_COMMAND"; tail -n 5 "$work/${name-}.out" || true; } >&2' ERR
export OMP_NUM_THREADS=1 PYTHONPATH=$root/src
tiny=(task=icr mixer=attn task.vocab_size=8 task.num_train_examples=40 task.num_val_examples=16
    task.num_test_examples=16 model.d_model=16 'optimizer.lr=[0.01,0.001]' trainer.batch_size=16 trainer.progress=false)

start() { # name override...: a sweep in a process group of its own, which hears SIGINT as one of a terminal does
    name=$1
    shift
    echo "== $name: $*"
    SECONDS=0
    "$PYTHON" -c 'import os, signal, sys
os.setsid()
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "$(command -v "$PYTHON")" -m mixerlab -m "${tiny[@]}" "${launcher[@]}" \
        "results_dir=$work/$name" "$@" >"$work/$name.out" 2>&1 &
    sweep=$!
}
end() { # waits for the sweep, and says what it said, without its tables
    code=0
    wait "$sweep" 2>/dev/null || code=$?
    grep -v -e '% of the work' -e '^ *$' -e '^##' -e '^|' -e '^Checkpoint' -e '^- ' "$work/$name.out" | cut -c 1-400 || true
    echo "exit code $code after $SECONDS s; $(finished) cells finished"
}
check() { # words command...
    local what=$1
    shift
    if "$@"; then echo "ok: $what"; else echo "NOT OK: $what"; failures=$((failures + 1)); fi
}
ends_well() { # number of cells
    end
    check "$1 cells are trained" has_finished "$1"
    check "a report" test -s "$work/$name"/sweeps/*/report/rows.csv
    check "exit code 0" test "$code" = 0
    check "nothing left" within 20 nothing_left
}
ends_with() { # exit code, what it says
    end
    check "exit code $1" test "$code" = "$1"
    check "it says: $2" grep -q -e "$2" "$work/$name.out"
    check "no traceback" bash -c "! grep -q Traceback '$work/$name.out'"
    check "nothing left" within 20 nothing_left
}
finished() { { grep -ls '"status": "finished"' "$work/$name"/runs/*/record.json || true; } | wc -l; }
has_finished() { [ "$(finished)" = "$1" ]; }
training() { # the processes that have signed the claim of a cell, and live
    local process
    for process in $(signed "$work/$name"/runs/*/.claim | sort -u); do
        if [ -d "/proc/$process" ]; then echo "$process"; fi
    done
}
signed() { { grep -ohs '^process [0-9]*' "$@" || true; } | cut -d ' ' -f 2; } # by which processes claims are
trains() { [ "$(training | wc -l)" -ge "$1" ]; } # number of cells
within() { # seconds command...: until it succeeds
    local until=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $until ] || return 1; sleep 0.25; done
}
