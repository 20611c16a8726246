#!/usr/bin/env bash
# Rows of the track lesion-phantom. Usage: phantom.sh OUT (a folder outside the repository); run again to resume.
# MINUTES=60 is the budget of a row on one core. The steps in this time are measured first, on an idle machine.
# METHODS="phiseg-small ..." selects methods. Afterwards, add the evaluations with rows.py.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
phiseg=$here/../../.venv/bin/phiseg python=$here/../../.venv/bin/python
mkdir -p "$1" && cd "$1"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # one core for each row

if [ ! -d data ]; then
  "$phiseg" prepare phantom lesion data.part --size 64 --num-cases 600 --seed 0 --overwrite
  "$phiseg" data split data.part --read "$here/splits/lesion-phantom.json"
  mv data.part data
fi
mkdir -p steps runs evals
for method in ${METHODS:-phiseg-small probunet-small ssn-small flow-ssn-small mose-small ccdm-small}; do
  if [ ! -f "steps/$method" ]; then
    "$python" "$here/../budget.py" "${MINUTES:-60}" "$method" data > "steps/$method.part"
    mv "steps/$method.part" "steps/$method"
  fi
  # validate once: the model of the last step is reported, and no row is selected by its scores
  "$phiseg" train "$method" --data data --out "runs/$method" --resume --train.steps "$(cat "steps/$method")" \
    --train.validate_every 1000000 --train.validation_samples 2
  [ -d "evals/$method" ] || "$phiseg" evaluate "runs/$method" --data data --num-samples 100 --out "evals/$method"
done
