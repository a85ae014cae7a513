#!/usr/bin/env bash
# All checks and tests. Sets up .venv first. Arguments go to pytest, such as: tests/run.sh tests/planner -x
set -euo pipefail
cd "$(dirname "$0")/.."
. examples/setup.sh dev

step() { printf '\n== %s\n' "$*"; "$@"; }

if [ $# -eq 0 ]; then
    step ruff format --check .
    step ruff check .
    step mypy
    step lint-imports
    for script in examples/*.sh tests/*.sh .ci/run; do step bash -n "$script"; done
    set -- -n "${TEST_WORKERS:-2}"
fi
step python -m pytest "$@"
