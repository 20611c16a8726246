#!/usr/bin/env bash
# The paper's table on every annotated slice of LIDC nodules. OUT is outside the repository; run again to resume.
#   run.sh search SLICES.npz OUT    learning rates and schedules of every method, 1,000 steps each, scored on validation patients
#   run.sh 64 SLICES.npz OUT        all methods with the chosen settings (recipes/), 64 x 64 pixels
#   run.sh 128 SLICES.npz OUT       PHiSeg, PHiSeg L=1 and Prob. U-Net, 128 x 128 pixels
# WORKERS=2 trains two rows at a time, MINUTES=60 is the budget of a row on one core, ROWS='all/*' selects rows.
# On a GPU, the full network of the paper: METHODS="phiseg-reference phiseg-l1 probunet" MINUTES=1440 run.sh 128 SLICES.npz OUT
set -euo pipefail
part=$1
slices=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)
phiseg=$here/../../.venv/bin/phiseg
mkdir -p "$3" && cd "$3"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # one core for each row

size=64
[ "$part" = 128 ] && size=128
if [ ! -d "data$size" ]; then
  "$phiseg" prepare arrays "$slices" "data$size" --rescale 5.4901960784 -1000 --window -1000 400 --size "$size" \
    --classes background nodule --centred-on nodule --modality CT --plane axial
  "$phiseg" data split "data$size" --hold-out val --fractions 90,10,0 --seed 0 # the file's val is reported as test
fi

augment="--augment.rotation_degrees 180 --augment.probability 0.8 --augment.quarter_turns true --augment.flip_vertical true"
common="--data data$size --workers ${WORKERS:-2} $augment"
last="--train.validate_every 1000000" # validate once: the model of the last step is reported, and no row is selected by its scores
small="phiseg-small probunet-small phiseg-l1-small ssn-small hprobunet-small cvae-small mcdropout-small ensemble-small \
  multihead-small"

case "$part" in
search)
  methods=${METHODS:-$small}
  for rate in 0.001 0.003; do
    for schedule in cosine constant; do
      "$phiseg" experiment table1 $common --out "search/$rate-$schedule" --methods $methods --regimes all \
        --steps "${STEPS:-1000}" --split val --num-samples 16 --train.learning_rate "$rate" --train.schedule "$schedule" $last
    done
  done
  ;;
64)
  rows=${ROWS:-"all/*/seed-0 one/phiseg-small/seed-0 one/phiseg-l1-small/seed-0 one/probunet-small/seed-0 \
    one/unet-small/seed-0 all/phiseg-small/* all/probunet-small/* all/cvae-small/*"}
  methods=""
  for method in $small unet-small; do # with the settings that the search chose, if there are any
    [ -f "$here/recipes/$method.yaml" ] && methods+=" $here/recipes/$method.yaml" || methods+=" $method"
  done
  set -f # patterns of rows, not of files
  "$phiseg" experiment table1 $common --minutes "${MINUTES:-60}" --out table64 --methods $methods \
    --seeds 0 1 2 --rows $rows $last
  ;;
128)
  # One more resolution than at 64 x 64, so that the coarsest latent has 2 x 2 pixels at both sizes.
  methods=${METHODS:-phiseg-small phiseg-l1-small probunet-small}
  case "$methods" in *-small*) deeper="--model.channels [16,16,24,32,48,48,48]" ;; *) deeper="" ;; esac
  "$phiseg" experiment table1 $common --minutes "${MINUTES:-60}" --out table128 --methods $methods --regimes all $deeper \
    $last
  ;;
esac
