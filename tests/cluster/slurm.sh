#!/bin/bash
# Sweeps through a real Slurm: two nodes on this host. It needs root, on a Debian host or container, and
#   apt-get install slurmctld slurmd slurm-client munge
source "$(dirname "$0")/common.sh"
launcher=(hydra/launcher=slurm hydra.launcher.gpus_per_node=null hydra.launcher.mem_gb=1)
export SLURM_CONF=$work/slurm.conf

down() {
    timeout 20 scancel --me && sleep 2 || true # of sweeps that a failed step left
    for file in "$work"/{n1,n2,slurmctld,munge}.pid; do
        if [ -e "$file" ]; then kill "$(cat "$file")" || true; fi
    done
    sleep 3
    rm -rf "$work"
}
trap down EXIT

cat >"$SLURM_CONF" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16829
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket,cred_expire=5
SlurmUser=root
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=5
SlurmdTimeout=10
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=16831 CPUs=4 RealMemory=4000
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=16832 CPUs=4 RealMemory=4000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
mkdir "$work"/{munge,state,n1,n2}
chmod 700 "$work/munge"
chmod 755 "$work" # munged insists that others cannot write above its socket, and can read it
(umask 077 && head -c 1024 /dev/urandom >"$work/munge/key")
munged --force --socket="$work/munge.socket" --key-file="$work/munge/key" --pid-file="$work/munge.pid" \
    --log-file="$work/munge/log" --seed-file="$work/munge/seed"
slurmctld
slurmd -N n1
slurmd -N n2
within 60 bash -c '[ "$(sinfo -h -t idle -o %D)" = 2 ]'

nothing_left() { [ -z "$(squeue -h)" ]; }
running() { squeue -h -r -t running -o '%i' | sort; }
below() { pgrep -P "$1" | while read -r child; do echo "$child"; below "$child"; done; } # all that a process started

start plain task.seq_len=16,24 trainer.epochs=3
ends_well 2

start cancelled task.seq_len=16,24,32 trainer.epochs=100
within 120 trains 2
scancel "$(running | head -1)"
ends_well 3 # the cancelled one was tried again

start killed_twice task.seq_len=16,24 trainer.epochs=100
within 120 trains 2
first=$(training | head -1)
run=$(dirname "$(grep -l "\"process\": $first" "$work/$name"/runs/*/.claim)")
kill -KILL "$first"
tried_again() { [ -n "$(signed "$run/.claim")" ] && [ "$(signed "$run/.claim")" != "$first" ]; }
within 180 tried_again
kill -KILL "$(signed "$run/.claim")"
ends_with 1 '^FAILED attn icr.*lost it twice'
check "the other cell is trained" has_finished 1

start node_killed task.seq_len=16,24 trainer.epochs=100
within 120 trains 2
steps=$(pgrep -f "^slurmstepd: \[$(squeue -h -r -w n2 -o %A)\.")
kill -KILL "$(cat "$work/n2.pid")" $steps $(for step in $steps; do below "$step"; done)
ends_well 2 # Slurm queued that of the node again
slurmd -N n2
within 60 bash -c '[ "$(sinfo -h -t idle -o %D)" = 2 ]'

start stopped task.seq_len=16,24,32 trainer.epochs=3000
within 120 trains 2
kill -TERM "$sweep"
ends_with 143 'stopped by SIGTERM: the same command goes on'

echo "$failures checks failed"
exit $((failures > 0))
