#!/usr/bin/env bash
# What:     fastText's program, training onto the path of an earlier model, and failing: here no file
#           of that name is the input.
# Versions: fasttext 0.9.2, the program built from its source; 2026-11-30.
# Guess:    it names the missing input, and the earlier model stays.
# Happens:  it names the missing input, and the earlier model is an empty file.  The program opens the
#           result for writing, to see that it may, before it looks at anything else.
# Seen:     exit status 134, "t.txt.missing cannot be opened for training!", model.bin of 320 bytes
#           before and 0 after
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
./fasttext supervised -input t.txt -output model -dim 4 -minCount 1 -thread 1 >train.log 2>&1
before=$(stat -c %s model.bin)
status=0
./fasttext supervised -input t.txt.missing -output model >failed.log 2>&1 || status=$?
after=$(stat -c %s model.bin)
echo "exit status $status: $(tail -n 1 failed.log); model.bin: $before bytes before, $after after"
test "$status" != 0
test "$before" -gt 0
test "$after" = 0
