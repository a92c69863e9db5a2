#!/bin/sh
# What one host does for the tools: start, look at, and stop the processes of this folder.
#
#   node.sh install                    a virtual environment with the wheels that were sent
#   node.sh start NAME WORD...         runs `snailps WORD...` as NAME, unless it runs already
#   node.sh status                     a line a process: name, state, pid, last words of its log
#   node.sh logs LINES [follow]        all logs, each line behind the name of its process
#   node.sh stop SECONDS               ends the job; after SECONDS SIGTERM, 5 s later SIGKILL
#   node.sh clean                      removes logs and results of ended processes
#
# It knows one folder, the one it lies in, and no other host.  A process is ours if its number and
# the time it began are those that `start` wrote down: a number that was given again is not.
set -eu
cd "$(dirname "$0")"

began() {       # when process $1 began, in ticks since the machine did; fails if it is gone
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    # The name, in parentheses, may hold anything: count behind it.
    # shellcheck disable=SC2086
    set -- ${stat##*) }
    [ "$1" != Z ] || return 1
    echo "${20}"
}

alive() {       # whether the process that run/$1.pid names still runs; its number in $pid
    [ -f "run/$1.pid" ] || return 1
    read -r pid since <"run/$1.pid" || return 1
    [ "$(began "$pid")" = "$since" ]
}

state() {       # the state of process $1, in words
    if alive "$1"; then
        echo running
    elif [ -f "run/$1.code" ]; then
        echo "ended with code $(cat "run/$1.code")"
    else
        echo "gone without a code (killed, or the host went down)"
    fi
}

names() {       # processes that were ever started here
    for file in run/*.pid; do
        [ -e "$file" ] && basename "$file" .pid
    done
    return 0
}

install() {
    wanted=$(cat wheels/* | sha256sum)
    if [ -f venv/.wheels ] && [ "$(cat venv/.wheels)" = "$wanted" ]; then
        echo "installed already"
        return
    fi
    python=$(command -v python3) || { echo "no python3 on this host" >&2; exit 1; }
    rm -rf venv
    "$python" -m venv venv
    venv/bin/python -m pip --disable-pip-version-check -q install --no-index \
        --find-links wheels snailps
    echo "$wanted" >venv/.wheels
    venv/bin/snailps --version
}

start() {
    name=$1
    shift
    if alive "$name"; then
        echo "$name runs already, process $pid"
        return
    fi
    [ -x venv/bin/snailps ] || { echo "nothing is installed here: distribute first" >&2; exit 1; }
    mkdir -p run logs
    rm -f "run/$name.code" "run/$name.pid"
    # Its own session: it outlives the connection that started it.
    # shellcheck disable=SC2016
    setsid sh -c '
        name=$1; shift
        venv/bin/snailps "$@" </dev/null >>"logs/$name.log" 2>&1 &
        echo $! >"run/$name.new"
        code=0; wait $! || code=$?
        echo "$code" >"run/$name.code"
    ' snailps-node "$name" "$@" </dev/null >/dev/null 2>&1 &
    tries=0
    while [ ! -s "run/$name.new" ]; do
        tries=$((tries + 1))
        [ "$tries" -le 100 ] || { echo "$name did not start within 5 s" >&2; exit 1; }
        sleep 0.05
    done
    pid=$(cat "run/$name.new")
    echo "$pid $(began "$pid" || echo 0)" >"run/$name.pid"
    rm -f "run/$name.new"
    echo "$name started, process $pid"
}

status() {
    for name in $(names); do
        words=$(state "$name")
        if alive "$name"; then words="$words, process $pid"; fi
        echo "$name: $words | $(tail -n 1 "logs/$name.log" 2>/dev/null | cut -c 1-200)"
    done
}

logs() {
    lines=$1
    follow=${2:-}
    for file in logs/*.log; do
        [ -e "$file" ] || continue
        name=$(basename "$file" .log)
        if [ "$follow" ]; then
            tail -n "$lines" -F "$file" 2>/dev/null | sed -u "s/^/$name: /" &
        else
            tail -n "$lines" "$file" | sed "s/^/$name: /"
        fi
    done
    if [ "$follow" ]; then
        cat >/dev/null          # until whoever reads has gone: it holds our input open
        trap '' TERM
        kill -TERM 0
    fi
}

left() {        # those that still run
    for name in $(names); do
        if alive "$name"; then echo "$name"; fi
    done
}

wait_for_end() {        # whether all have ended within $1 seconds
    waited=0
    while [ "$(left)" ]; do
        [ "$waited" -lt $(($1 * 10)) ] || return 1
        waited=$((waited + 1))
        sleep 0.1
    done
}

stop() {
    # The master's end is everybody's: the job stops cleanly, and what was learnt is saved.
    if alive master; then
        kill -INT "$pid"
        echo "master: told to end the job"
    fi
    wait_for_end "$1" || for name in $(left); do
        if alive "$name"; then kill -TERM "$pid" && echo "$name: told to leave after $1 s"; fi
    done
    wait_for_end 5 || for name in $(left); do
        if alive "$name"; then kill -KILL "$pid" && echo "$name: killed"; fi
    done
    for name in $(names); do echo "$name: $(state "$name")"; done
}

clean() {
    for name in $(names); do
        if alive "$name"; then
            echo "$name still runs, process $pid: stop first" >&2
            exit 1
        fi
    done
    rm -rf run logs
}

case ${1:-} in
install | start | status | logs | stop | clean) "$@" ;;
*)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
