#!/usr/bin/env bash
# The main job on an emulated mixed cluster: profile, plan, simulate, train, and the prediction beside what happened.
# Sets up .venv first. Results go to runs/quickstart (RESULTS names another folder). About four minutes after set-up.
set -euo pipefail
cd "$(dirname "$0")/.."
. examples/setup.sh hf

results=${RESULTS:-runs/quickstart}
cluster=examples/clusters/laptop-mixed.json
model=examples/models/gpt-10m.json
rm -rf "$results"
mkdir -p "$results"

run() { printf '\n$ %s\n' "$*"; "$@"; }

run cephalo profile "$cluster" --model "$model" --seq-len 256 --max-microbatch 6 --max-seconds 40 \
    -o "$results/profile.json" --quiet
run cephalo plan "$results/profile.json" --batch-size 32 -o "$results/plan.json"
run cephalo simulate "$results/plan.json" -o "$results/simulated.json" \
    --trace "$results/simulated.trace.json" --plot "$results/step.png"
run cephalo train "$results/plan.json" --data python-stdlib --steps 8 -o "$results/measured.json" \
    --trace "$results/measured.trace.json"

# What the same cluster does with the even split of today's frameworks. It does not fit (the plan's table says so), so the
# memory limits are lifted to get a time at all, and it need not recompute; speeds stay as they are.
run cephalo train "$results/plan.json" --engine fsdp2 --even-split --no-memory-limit --data python-stdlib --steps 4 \
    -o "$results/even.json" --quiet

run cephalo show "$results/plan.json" "$results/simulated.json" "$results/measured.json" "$results/even.json"
printf '\nLook further: %s/step.png; the traces open in https://ui.perfetto.dev\n' "$results"
