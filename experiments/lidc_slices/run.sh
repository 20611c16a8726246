#!/usr/bin/env bash
# The paper's table on every annotated slice of LIDC nodules. OUT is outside the repository; run again to resume.
#   run.sh search SLICES.npz OUT    learning rates and schedules of every method, 1,000 steps each, scored on validation patients
#   run.sh steps SLICES.npz OUT     steps of every method in MINUTES on one core; needs an idle machine, so run it first
#   run.sh 64 SLICES.npz OUT        all rows, 64 x 64 pixels, with these steps
#   run.sh 128 SLICES.npz OUT       PHiSeg, PHiSeg L=1 and Prob. U-Net, 128 x 128 pixels
# MINUTES=60 is the budget of a row on one core, ROWS='all/phiseg-small/0 ...' selects rows (regime/method/seed).
# On a GPU, the full network of the paper: METHODS="phiseg-reference phiseg-l1 probunet" MINUTES=1440 run.sh 128 SLICES.npz OUT
set -euo pipefail
part=$1
slices=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)
phiseg=$here/../../.venv/bin/phiseg python=$here/../../.venv/bin/python
mkdir -p "$3" && cd "$3"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # one core for each row

size=64
[ "$part" = 128 ] && size=128
if [ ! -d "data$size" ]; then
  "$phiseg" prepare arrays "$slices" "data$size" --rescale 5.4901960784 -1000 --window -1000 400 --size "$size" \
    --classes background nodule --centred-on nodule --modality CT --plane axial
  "$phiseg" data split "data$size" --read "$here/../benchmark/splits/lidc-slices.json"
fi

augment="--augment.rotation_degrees 180 --augment.probability 0.8 --augment.quarter_turns true --augment.flip_vertical true"
last="--train.validate_every 1000000" # validate once: the model of the last step is reported, and no row is selected by its scores
small="phiseg-small probunet-small phiseg-l1-small ssn-small hprobunet-small cvae-small mcdropout-small ensemble-small \
  multihead-small unet-small flow-ssn-small mose-small ccdm-small"
minutes=${MINUTES:-60}

case "$part" in
search)
  for rate in 0.001 0.003; do
    for schedule in cosine constant; do
      "$phiseg" experiment table1 --data data64 $augment --out "search/$rate-$schedule" --methods ${METHODS:-$small} \
        --regimes all --steps "${STEPS:-1000}" --split val --num-samples 16 --train.learning_rate "$rate" \
        --train.schedule "$schedule" $last
    done
  done
  ;;
steps)
  for method in $small; do
    echo "$method $("$python" "$here/../budget.py" "$minutes" "$method" data64 $augment)"
  done | tee steps64.part
  mv steps64.part steps64
  ;;
64)
  all="all/phiseg-small/0 all/probunet-small/0 all/phiseg-l1-small/0 all/hprobunet-small/0 all/ssn-small/0 all/cvae-small/0 \
    all/mcdropout-small/0 all/ensemble-small/0 all/multihead-small/0 all/flow-ssn-small/0 all/mose-small/0 all/ccdm-small/0"
  one="one/phiseg-small/0 one/phiseg-l1-small/0 one/probunet-small/0 one/unet-small/0"
  seeds="all/phiseg-small/1 all/phiseg-small/2 all/probunet-small/1 all/probunet-small/2 all/cvae-small/1 all/cvae-small/2"
  mkdir -p runs evals
  for row in ${ROWS:-$all $one $seeds}; do
    IFS=/ read -r regime method seed <<< "$row"
    name=$regime-$method-seed$seed
    steps=$(awk -v method="$method" '$1 == method { print $2 }' steps64)
    expert=""
    [ "$regime" = one ] && expert="--train.annotator 0"
    "$phiseg" train "$method" --data data64 --out "runs/$name" --resume --train.steps "$steps" --train.seed "$seed" \
      $augment $last --train.validation_samples 2 $expert
    [ -d "evals/$name" ] || "$phiseg" evaluate "runs/$name" --data data64 --num-samples 100 --out "evals/$name"
  done
  ;;
128)
  # One more resolution than at 64 x 64, so that the coarsest latent has 2 x 2 pixels at both sizes.
  methods=${METHODS:-phiseg-small phiseg-l1-small probunet-small}
  case "$methods" in *-small*) deeper="--model.channels [16,16,24,32,48,48,48]" ;; *) deeper="" ;; esac
  "$phiseg" experiment table1 --data data128 $augment --workers "${WORKERS:-2}" --minutes "$minutes" --out table128 \
    --methods $methods --regimes all $deeper $last
  ;;
esac
