#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a command in a SLURM cluster of two nodes on this machine, as root. The cluster ends with it.
#
#   tests/support/slurm_cluster.sh FOLDER COMMAND...     FOLDER: an empty one, for SLURM's files
#
# Each node has its own network and host name. As on many clusters, the node's name (node1) is not
# its host name (host1), and the two resolve to different addresses. tools/setup.sh slurm installs
# what this needs.
set -euo pipefail

if [[ $1 != --inside ]]; then
  exec unshare --mount --net --uts --pid --fork --kill-child --mount-proc "$0" --inside "$@"
fi
folder=$2
shift 2
mkdir -p "$folder"/{state,node1,node2,munge}
chmod 700 "$folder/munge"

unshare --net --uts sleep infinity &
second=$!
on_second() { nsenter --net --uts --target "$second" "$@"; }
until [[ $(readlink "/proc/$second/ns/net") != $(readlink /proc/self/ns/net) ]]; do sleep 0.01; done
hostname host1
on_second hostname host2
ip link set lo up
on_second ip link set lo up
ip link add eth0 type veth peer name eth0 netns "$second"
for network in 10.77.0 10.78.0; do
  ip addr add "$network.1/24" dev eth0
  on_second ip addr add "$network.2/24" dev eth0
done
ip link set eth0 up
on_second ip link set eth0 up
cat >"$folder/hosts" <<'END'
127.0.0.1 localhost
10.77.0.1 node1
10.77.0.2 node2
10.78.0.1 host1
10.78.0.2 host2
END
mount --bind "$folder/hosts" /etc/hosts

head -c1024 /dev/urandom >"$folder/munge/key"
chmod 600 "$folder/munge/key"
munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" \
  --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"

cat >"$folder/slurm.conf" <<END
ClusterName=test
SlurmctldHost=host1(10.77.0.1)
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
SlurmUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
NodeName=node1 NodeHostname=host1 NodeAddr=10.77.0.1 CPUs=16 RealMemory=20000
NodeName=node2 NodeHostname=host2 NodeAddr=10.77.0.2 CPUs=16 RealMemory=20000
PartitionName=all Nodes=ALL Default=YES State=UP
END
export SLURM_CONF=$folder/slurm.conf
slurmctld
slurmd
on_second slurmd
# shellcheck disable=SC2016 # the inner shell expands it
timeout 30 bash -c 'until [[ $(sinfo -ho "%D %t") == "2 idle" ]]; do sleep 0.1; done'
"$@"
