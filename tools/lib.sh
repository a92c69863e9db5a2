# What the tools share: the inventory, the remote shell, work on many hosts at once.
#
#   config/hosts -> LINES, ALL, MASTER     each HOST SCRIPT -> $SNAILPS_RSH HOST SCRIPT, all at once
#                                          lines of output behind their host, failures counted
#
# Sourced, never run. node.sh does the work on each host. From the environment:
#
#   SNAILPS_HOSTS   the inventory: config/hosts
#   SNAILPS_DIR     the folder on every host, below the home folder: snailps. %h in it is the host,
#                   for hosts that share a home folder
#   SNAILPS_RSH     remote shell, words before HOST SCRIPT: ssh -o BatchMode=yes -o ConnectTimeout=10
#                   -o ServerAliveInterval=5 -o ServerAliveCountMax=3 (a host that vanishes is given up)
# shellcheck shell=bash
set -euo pipefail
# Empty arrays are unset, and substitutions have no process id, in older ones.
((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || {
    echo "expected bash 4.4 or later, got $BASH_VERSION" >&2
    exit 2
}
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
HOSTS=${SNAILPS_HOSTS:-$ROOT/config/hosts}
FOLDER=${SNAILPS_DIR:-snailps}
SSH="ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3"
read -ra RSH <<<"${SNAILPS_RSH:-$SSH}"
TOOL=$(basename "$0")
TERMINAL=
[ ! -t 1 ] || TERMINAL=1

die() {
    printf '%s: %s\n' "$TOOL" "$*" >&2
    exit 2
}

usage() { # prints the head comment of the script as its help; a code marks wrong usage
    [ $# = 0 ] || exec >&2
    sed -n '2,/^[^#]/{/^# shellcheck/d;s/^# \{0,1\}//p}' "$0"
    exit "${1:-0}"
}

inventory() { # ROLE HOST COUNT SETTING=VALUE..., one a line, checked
    [ -r "$HOSTS" ] || die "no inventory at $HOSTS: copy config/hosts.example, or set SNAILPS_HOSTS"
    awk -v file="$HOSTS" '
        function bad(text) {
            printf "%s:%d: %s\n", file, NR, text >"/dev/stderr"
            failed = 1
            exit 2
        }
        { sub(/(^|[ \t])#.*/, "") }
        NF == 0 { next }
        $1 !~ /^(master|server|worker)$/ { bad("expected master, server or worker, got " $1) }
        NF < 2 { bad("expected: role host [count] [setting=value ...], got no host") }
        $2 !~ /^[A-Za-z0-9][A-Za-z0-9._:-]*$/ || $2 ~ /^[^:]*:[^:]*$/ {
            bad("expected a host name or address, got " $2 ": user and port go into ~/.ssh/config")
        }
        {
            count = 1; first = 3
            if (NF >= 3 && $3 !~ /=/) { count = $3; first = 4 }
            if (count !~ /^[1-9][0-9]*$/) bad("expected a count from 1, got " count)
            line = $1 " " $2 " " count
            for (i = first; i <= NF; i++) {
                if ($i !~ /^[a-z][a-z0-9_]*=/) bad("expected setting=value, got " $i)
                if ($i ~ /^master_port=/) {
                    if ($1 != "master") bad("master_port is for the line of the master")
                    port = substr($i, 13)
                    if (port !~ /^[1-9][0-9]*$/ || port + 0 > 65535)
                        bad("expected master_port from 1 to 65535, got " port)
                }
                line = line " " $i
            }
            number[$1] += count
            print line
        }
        END {
            if (failed) exit 2
            NR = 0
            if (number["master"] != 1) bad("expected one master, got " number["master"] + 0)
            if (!number["server"]) bad("expected a server, got none")
            if (!number["worker"]) bad("expected a worker, got none")
        }' <(LC_ALL=C sed $'1s/^\xef\xbb\xbf//; s/\r$//' "$HOSTS") # as Windows writes it, too
}

read_inventory() { # LINES; ALL, the hosts, each once; MASTER, its host; ADDRESS, where it listens
    local text line words
    text=$(inventory) || exit 2
    mapfile -t LINES <<<"$text"
    mapfile -t ALL < <(awk '!seen[$2]++ { print $2 }' <<<"$text")
    for line in "${LINES[@]}"; do
        read -ra words <<<"$line"
        [ "${words[0]}" = master ] || continue
        MASTER=${words[1]} ADDRESS=${words[1]}
        [[ $MASTER != *:* ]] || ADDRESS="[$MASTER]"
        ADDRESS+=:$(sed -n 's/.* master_port=\([0-9]*\).*/\1/p' <<<"$line" | grep . || echo 16831)
    done
}

quoted() { # words, quoted for the remote shell
    local word out=
    for word in "$@"; do out+="'${word//\'/\'\\\'\'}' "; done
    printf '%s' "${out% }"
}

on_new() { # a script on a host, in its folder, which is made; input passes through
    local at
    at=$(quoted "${FOLDER//%h/$1}")
    "${RSH[@]}" "$1" "exec sh -c $(quoted "mkdir -p $at && cd $at || exit 1; $2")"
}

on() { # a script on a host, in its folder, which must exist
    local at=${FOLDER//%h/$1}
    local none="nothing was distributed here: no folder $at"
    "${RSH[@]}" "$1" "exec sh -c $(quoted "
        [ -e $(quoted "$at/node.sh") ] || { echo $(quoted "$none") >&2; exit 1; }
        cd $(quoted "$at") || exit 1
        $2")"
}

JOBS=() # ids of the jobs of `on_all`, which are groups of processes

interrupted() { # CODE: ends the jobs; what runs on a host ends when it writes the next time
    trap '' INT TERM HUP
    for job in "${JOBS[@]}"; do kill -TERM -- "-$job" 2>/dev/null || true; done
    exit "$1"
}

on_all() { # on_all FUNCTION: FUNCTION HOST for each host at once
    local host n=0 failed=0 begin='' end=''
    # Without job control they would ignore Ctrl-C, and run on after it.
    [ "$(trap -p INT)" ] || trap 'interrupted 130' INT
    [ "$(trap -p TERM)" ] || trap 'interrupted 143' TERM
    [ "$(trap -p HUP)" ] || trap 'interrupted 129' HUP
    set -m
    for host in "${ALL[@]}"; do
        [ -z "$TERMINAL" ] || begin=$'\033['$((31 + n % 6))m end=$'\033[0m'
        { "$1" "$host" 2>&1 | sed -u "s/^/$begin$host$end: /"; } &
        JOBS+=("$!")
        n=$((n + 1))
    done
    set +m
    n=0
    for host in "${ALL[@]}"; do
        n=$((n + 1))
        wait "${JOBS[n - 1]}" && continue
        failed=$((failed + 1))
        printf '%s: %s: failed, see above\n' "$TOOL" "$host" >&2
    done
    [ "$failed" = 0 ] || {
        printf '%s: %d of %d hosts failed\n' "$TOOL" "$failed" "$n" >&2
        return 1
    }
}
