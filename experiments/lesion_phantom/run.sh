#!/usr/bin/env bash
# Train and score lesion-phantom, a model that comes with phiseg, for tests. Usage: run.sh OUT, a folder outside the repository; resumable.
set -euo pipefail
phiseg=$(cd "$(dirname "$0")/../.." && pwd)/.venv/bin/phiseg
mkdir -p "$1" && cd "$1"

[ -d data ] || "$phiseg" prepare phantom lesion data --size 64 --num-cases 1000
"$phiseg" train phiseg-small --data data --out lesion-phantom --resume --train.steps 1500 --train.validate_every 500
"$phiseg" calibrate lesion-phantom --data data # stores no temperature that does not help on held-out phantoms
"$phiseg" evaluate lesion-phantom --data data --num-samples 100 --out eval --overwrite
"$phiseg" compare eval --out report --overwrite
