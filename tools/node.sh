#!/bin/sh
# The tools' part on one host: starts, shows and stops the processes of this folder.
#
#   node.sh install                  unpacks the wheels that were sent
#   node.sh start NAME WORD...       runs `snailps WORD...` as NAME, unless it runs already
#   node.sh status                   one line per process: name, state, last line of its log
#   node.sh follow                   the job's status until it ends; ends with its exit code
#   node.sh logs LINES [follow]      all logs, each line prefixed with its process
#   node.sh stop SECONDS             ends the job; after SECONDS SIGTERM, 5 s later SIGKILL
#   node.sh pack PATH...             an archive of those that exist, to standard output
#
# It uses only the folder that contains it, and must not know other hosts. A process is ours if its
# id and start time are those that `start` recorded, so that a reused id is not.
#
#   wheels/ -> install -> lib/, snailps          run/NAME.pid: id, start time, waiter; NAME.code
#                                                run/lock: held by `start` and tools/distribute
set -eu
cd "$(dirname "$0")"

fail() {
    echo "$*" >&2
    exit 1
}

began() { # start time of process $1, in ticks since boot; fails if it has ended
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    # The name, in parentheses, may contain anything: count the fields behind it.
    # shellcheck disable=SC2086
    set -- ${stat##*) }
    case $1 in Z | X) return 1 ;; esac
    echo "${20}"
}

alive() { # whether the process that run/$1.pid names still runs; its id in $pid
    [ -f "run/$1.pid" ] || return 1
    read -r pid since _ <"run/$1.pid" || return 1
    [ "$(began "$pid")" = "$since" ]
}

names() { # all processes that have been started here
    for file in run/*.pid; do
        if [ -e "$file" ]; then basename "$file" .pid; fi
    done
}

left() { # those that still run
    for name in $(names); do
        if alive "$name"; then echo "$name"; fi
    done
}

state() { # of process $1, in words
    if alive "$1"; then
        echo "running, process $pid"
        return
    fi
    # If it has just ended, the process that waits for it is about to write its code.
    tries=0
    while [ ! -f "run/$1.code" ] && read -r _ _ waiter <"run/$1.pid" &&
        [ "$(began "$waiter")" ] && [ "$tries" -lt 100 ]; do
        tries=$((tries + 1))
        sleep 0.05
    done
    if [ -f "run/$1.code" ]; then
        echo "ended with code $(cat "run/$1.code")"
    else
        echo "gone without a code: killed, or the host went down"
    fi
}

python_of() { # the Python that wheel $1 was made for
    tags=${1##*-cp3} # 11-cp311-linux_x86_64.whl
    version=3.${tags%%-*}
    machine=$(uname -m)
    case $1 in *"$machine.whl") ;; *) fail "expected a wheel for $machine, got ${1##*/}" ;; esac
    for python in "python$version" python3; do
        found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
            continue
        if [ "$found" = "$version" ]; then
            command -v "$python"
            return
        fi
    done
    fail "expected Python $version, for which ${1##*/} was made, got ${found:-none}"
}

install() {
    wanted=$(cat wheels/*.whl | sha256sum)
    if [ -x snailps ] && [ "$(cat lib/.wheels)" = "$wanted" ]; then
        echo "installed already"
        return
    fi
    running=$(left)
    [ -z "$running" ] || fail "another package was sent, but $running still runs: stop it first"
    python=$(python_of "$(ls wheels/snailps-*.whl)")
    # A wheel is a zipped folder for Python's path: it needs no pip and no environment. What runs
    # from lib, `snailps status` say, keeps the files that it has.
    rm -rf lib.new
    for wheel in wheels/*.whl; do "$python" -I -m zipfile -e "$wheel" lib.new; done
    # Python searches the folder of this file first, and no other before its own library.
    cat >lib.new/start.py <<EOF
import pathlib, sys
sys.path.append(str(pathlib.Path(__file__).absolute().parents[1] / "data"))
from snailps.cli.entry import main
main()
EOF
    rm -rf lib snailps
    mv lib.new lib
    cat >snailps.new <<EOF
#!/bin/sh
# snailps of this folder; data/ is the last place of its path, for your own classes.
here=\$(cd "\$(dirname "\$0")" && pwd)
if [ -e "\$here/secret" ]; then export SNAILPS_SECRET_FILE="\$here/secret"; fi
if [ -e "\$here/tls/node.key" ]; then export SNAILPS_TLS="\$here/tls"; fi
exec $python "\$here/lib/start.py" "\$@"
EOF
    chmod +x snailps.new
    ./snailps.new --version
    echo "$wanted" >lib/.wheels
    mv snailps.new snailps
}

start() {
    name=$1
    shift
    [ -x snailps ] || fail "nothing is installed here: tools/distribute first"
    mkdir -p run logs
    exec 9>run/lock
    # Or two calls at once would start it twice, or from a package that is being replaced.
    flock -n 9 || { echo "waits for another distribute or start here" && flock 9; }
    if alive "$name"; then
        echo "$name runs already, process $pid"
        return
    fi
    rm -f "run/$name.code" "run/$name.pid" "run/$name.new"
    # Its own session, so that it outlives the connection that started it.
    # shellcheck disable=SC2016
    setsid sh -c '
        name=$1
        shift
        ./snailps "$@" >>"logs/$name.log" 2>&1 &
        echo $! $$ >"run/$name.new"
        code=0
        wait $! || code=$?
        echo "$code" >"run/$name.code"
    ' snailps-node "$name" "$@" </dev/null >/dev/null 2>&1 9>&- &
    tries=0
    until [ -s "run/$name.new" ]; do
        tries=$((tries + 1))
        [ "$tries" -le 600 ] || fail "$name did not start within 30 s"
        sleep 0.05
    done
    read -r pid waiter <"run/$name.new"
    echo "$pid $(began "$pid" || echo 0) $waiter" >"run/$name.pid"
    rm "run/$name.new"
    echo "$name started, process $pid"
}

status() {
    for name in $(names); do
        echo "$name: $(state "$name") | $(tail -n 1 "logs/$name.log" | cut -c 1-200)"
    done
}

follow() {
    [ -f run/master.pid ] || fail "no master was started here"
    read -r pid _ <run/master.pid
    code=0
    ./snailps status --watch --interval 5 --pid "$pid" || code=$?
    if [ "$code" != 0 ] && ! alive master; then
        state master
        tail -n 5 logs/master.log
        ended=$(cat run/master.code 2>/dev/null || echo 0)
        [ "$ended" = 0 ] || code=$ended # it has begun no job, and `status` knows no code
    fi >&2
    exit "$code"
}

logs() {
    set -- "$1" "${2:-}" logs/*.log
    [ -e "$3" ] || fail "no logs yet"
    if [ -z "$2" ]; then
        lines=$1
        shift 2
        tail -v -n "$lines" "$@" | named
    else
        lines=$1
        shift 2
        # `tail` ends with this shell, which ends when its input is closed: the reader holds it.
        tail -v -n "$lines" -F --pid=$$ "$@" 2>/dev/null | named &
        cat >/dev/null
    fi
}

named() { # `tail` prints an empty line and a header before lines of another file
    name='' empty=0
    while IFS= read -r line; do
        case $line in
        '==> logs/'*'.log <==') next=${line#==> logs/} show=$((empty - 1)) ;;
        '') empty=$((empty + 1)) && continue ;;
        *) next='' show=$empty ;;
        esac
        while [ "$show" -gt 0 ]; do
            echo "$name:"
            show=$((show - 1))
        done
        empty=0
        if [ "$next" ]; then name=${next%.log <==}; else printf '%s: %s\n' "$name" "$line"; fi
    done
}

seconds() { # since the host began: no correction of its time of day ends a wait, or prolongs it
    read -r up _ </proc/uptime
    echo "${up%%.*}"
}

wait_for_end() { # whether all have ended within $1 seconds
    limit=$(($(seconds) + $1)) # seconds, not turns: a turn takes longer on a busy machine
    while [ "$(left)" ]; do
        [ "$(seconds)" -le "$limit" ] || return 1
        sleep 0.1
    done
}

stop() {
    # All processes end with the master: the job stops in order, and the model is saved.
    if alive master; then
        kill -INT "$pid"
        echo "master: SIGINT, ends the job and saves the model"
    fi
    # The line comes before the signal: writing it ends this shell where nobody waits for it any
    # more, after Ctrl-C at tools/stop.
    wait_for_end "$1" || for name in $(left); do
        echo "$name: SIGTERM after $1 s" || exit 1
        if alive "$name"; then kill -TERM "$pid"; fi
    done
    wait_for_end 5 || for name in $(left); do
        echo "$name: SIGKILL" || exit 1
        if alive "$name"; then kill -KILL "$pid"; fi
    done
    wait_for_end 5 || fail "killed and still there: $(left)"
    for name in $(names); do echo "$name: $(state "$name")"; done
}

pack() {
    for path in "$@"; do
        shift
        if [ -e "$path" ]; then set -- "$@" "$path"; fi
    done
    [ $# -gt 0 ] || fail "nothing to collect here"
    # 1: a log grew while it was read.
    tar -cf - "$@" 2>/dev/null || [ $? = 1 ] || fail "cannot read all of $*"
}

case ${1:-} in
install | start | status | follow | logs | stop | pack) "$@" ;;
*)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
