#!/usr/bin/env bash
# What:     `/` of two C integers in Cython, with `language_level=3`.
# Versions: Cython 3.3.1, Python 3.11, gcc 12; 2026-11-29.
# Guess:    language_level=3 makes it true division, as in Python 3. `cdivision=True` is about `//` and `%` of
#           negative numbers, and about the check for a divisor of 0.
# Happens:  with cdivision=True integers are divided, and the fraction is lost: a share of work that is done is
#           0 until all of it is. Nothing warns. `<double>a / b` divides as meant.
# Seen:     without cdivision 0.5; with cdivision 0
# shellcheck source-path=SCRIPTDIR
. "$(dirname "${BASH_SOURCE[0]}")/_prologue.sh"
install cython==3.3.1 setuptools==80.9.0

for name in without with; do
    directives="language_level=3"
    [ "$name" = without ] || directives+=", cdivision=True"
    printf '%s\n' "# cython: $directives" \
        "def share(unsigned int done, unsigned int total):" "    return done / total" > "share_$name.pyx"
    python -m Cython.Build.Cythonize --inplace "share_$name.pyx" > build.log 2>&1 || { cat build.log; exit 2; }
done
python - <<'PYTHON'
import share_with
import share_without

found = share_without.share(1, 2), share_with.share(1, 2)
print(f"without cdivision {found[0]}; with cdivision {found[1]}")
assert found == (0.5, 0)
PYTHON
