# Sourced by quickstart.sh and tests/run.sh: makes .venv in the project's root and installs the project into it, once.
# Usage: . examples/setup.sh [EXTRA]      EXTRA is an optional set of dependencies from pyproject.toml: hf (weights and
# tokenizers in the formats of Hugging Face), or dev, which has them too.
# PYTHON names the interpreter to use (default python3; 3.11 or newer).

extra=${1:-}
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "$python is missing or older than Python 3.11; name a newer one: PYTHON=python3.12 $0" >&2
    exit 2
fi
stamp=.venv/installed-${extra:-base}
want=$(cksum pyproject.toml)
if [ ! -x .venv/bin/python ] || [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
    echo "Setting up .venv (once; downloads PyTorch where it is not at hand) ..."
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    # A torch that is there already stays; otherwise the release this project is tested with.
    .venv/bin/python -c 'import torch' 2>/dev/null || .venv/bin/python -m pip install --quiet --quiet "torch==2.13.0"
    .venv/bin/python -m pip install --quiet --quiet --editable ".${extra:+[$extra]}"
    echo "$want" > "$stamp"
fi
PATH="$PWD/.venv/bin:$PATH"
export PATH
