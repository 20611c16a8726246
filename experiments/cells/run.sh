#!/usr/bin/env bash
# Four main methods on cells drawn by up to ten people, some of them missing. Usage: run.sh CELLS.npz OUT.
set -euo pipefail
cells=$(realpath "$1")
phiseg=$(cd "$(dirname "$0")/../.." && pwd)/.venv/bin/phiseg
mkdir -p "$2" && cd "$2"

[ -d data ] || "$phiseg" prepare arrays "$cells" data --classes background cell --seed 0
"$phiseg" experiment table1 --data data --out table1 --steps 1000 --workers "${WORKERS:-2}" --regimes all \
  --methods phiseg-small probunet-small phiseg-l1-small ssn-small \
  --augment.quarter_turns true --train.validation_samples 8 --train.validate_every 250
