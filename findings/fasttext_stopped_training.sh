#!/usr/bin/env bash
# What:     fastText's program, training onto the path of an earlier model, and stopped before its end.
# Versions: fasttext 0.9.2, the program built from its source; 2026-11-30.
# Guess:    the result is written at the end, so the earlier model stays.
# Happens:  the earlier model is an empty file from the start of the training on.  The program opens
#           the result for writing, to see that it may, before it reads the text.
# Seen:     model.bin: 320 bytes after a training, 0 while the next one runs and after it was stopped
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install pybind11==2.13.6 setuptools==75.8.0 wheel==0.45.1 numpy==1.26.4
python -m pip download -q --no-deps --no-build-isolation --no-binary :all: fasttext==0.9.2
tar xzf fasttext-0.9.2.tar.gz
c++ -std=c++17 -O0 -include cstdint -pthread -o fasttext fasttext-0.9.2/src/*.cc

for _ in 1 2 3 4 5; do
    echo "__label__a some words"
    echo "__label__b other words"
done >t.txt
train=(./fasttext supervised -input t.txt -output model -dim 4 -minCount 1 -thread 1)
"${train[@]}" >train.log 2>&1
before=$(stat -c %s model.bin)
"${train[@]}" -epoch 100000000 >stopped.log 2>&1 &
sleep 3
during=$(stat -c %s model.bin)
kill $!
wait $! || true
after=$(stat -c %s model.bin)
echo "model.bin: $before bytes before, $during during the next training, $after after it was stopped"
test "$before" -gt 0
test "$during" = 0
test "$after" = 0
