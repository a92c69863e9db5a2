# shellcheck shell=bash disable=SC2329  # scripts that source it call `python`
# Sourced by each finding: a temporary folder, removed at the end, and `install PACKAGE==VERSION...`
# into an environment there.  `python` is then that environment's.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

install() {
    "${PYTHON:-python3}" -m venv environment
    environment/bin/python -m pip --quiet --disable-pip-version-check install "$@"
    python() { "$folder/environment/bin/python" "$@"; }
}
