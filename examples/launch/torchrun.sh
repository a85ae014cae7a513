#!/usr/bin/env bash
# Start one node's ranks of a plan. Run it on every node of the cluster, in any order:
#     examples/launch/torchrun.sh NODE MASTER_ADDR PLAN [options of cephalo train]
# NODE is the node's place in the plan's cluster file, from 0; nodes may have different numbers of devices.
# MASTER_ADDR is how all nodes reach node 0; MASTER_PORT (default 29500) must be free there.
# For Gloo (CPU devices) name the network card with GLOO_SOCKET_IFNAME, for NCCL with NCCL_SOCKET_IFNAME, where a node
# has several.
set -euo pipefail
if [ $# -lt 3 ]; then
    sed -n '2,3s/^# //p' "$0" >&2
    exit 2
fi
node=$1 master=$2 plan=$3
shift 3

# One line: how many nodes the plan has, and how many devices this one has.
read -r num_nodes num_devices < <(cephalo show "$plan" --json | python3 -c '
import json, sys
nodes = json.load(sys.stdin)["cluster"]["nodes"]
print(len(nodes), len(nodes[int(sys.argv[1])]["devices"]))' "$node")

exec torchrun --nnodes "$num_nodes" --nproc-per-node "$num_devices" --node-rank "$node" \
    --master-addr "$master" --master-port "${MASTER_PORT:-29500}" --no-python \
    cephalo train "$plan" "$@"
