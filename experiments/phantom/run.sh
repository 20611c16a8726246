#!/usr/bin/env bash
# The four main methods on both phantoms, whose true floor is known. Usage: run.sh OUT (a folder outside the repository).
set -euo pipefail
phiseg=$(cd "$(dirname "$0")/../.." && pwd)/.venv/bin/phiseg
mkdir -p "$1" && cd "$1"

for kind in lesion zones; do
  [ -d $kind ] || "$phiseg" prepare phantom $kind $kind --size 64 --num-cases 1000 --seed 0
  "$phiseg" experiment table1 --data $kind --out table1-$kind --steps 2000 --workers "${WORKERS:-2}" --regimes all \
    --methods phiseg-small probunet-small phiseg-l1-small ssn-small \
    --train.validation_samples 8 --train.validate_every 500
done
