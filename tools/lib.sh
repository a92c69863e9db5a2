# What the tools share: the inventory, the remote shell, work on many hosts at once.
#
#   config/hosts -> lines, hosts        each HOST COMMAND -> $SNAILPS_RSH HOST COMMAND, all at once,
#                                       every line of output behind its host; failures are counted
#
# Sourced, never run; functions given to `on_all` are called from here.  It knows nothing of what the processes do.
#
#   SNAILPS_HOSTS   the inventory                    config/hosts
#   SNAILPS_DIR     the folder on every host         snailps (below the home folder); %h: the host
#   SNAILPS_RSH     remote shell: words before HOST COMMAND
#                                                    ssh -o BatchMode=yes -o ConnectTimeout=10
# shellcheck shell=bash
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
HOSTS=${SNAILPS_HOSTS:-$ROOT/config/hosts}
REMOTE=${SNAILPS_DIR:-snailps}
RSH=${SNAILPS_RSH:-ssh -o BatchMode=yes -o ConnectTimeout=10}

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 2
}

usage() {           # the comment at the head of the script is its help
    sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
    exit "${1:-0}"
}

inventory() {       # ROLE HOST COUNT OPTIONS..., one a line, checked
    [ -r "$HOSTS" ] || die "no inventory at $HOSTS: copy config/hosts.example, or set SNAILPS_HOSTS"
    awk -v file="$HOSTS" '
        function bad(text) { printf "%s:%d: %s\n", file, NR, text >"/dev/stderr"; failed = 1; exit 2 }
        { sub(/#.*/, "") }
        NF == 0 { next }
        $1 !~ /^(master|server|worker)$/ { bad("expected master, server or worker, got " $1) }
        NF < 2 { bad("expected: role host [count] [setting=value ...], got no host") }
        {
            count = 1; first = 3
            if (NF >= 3 && $3 !~ /=/) { count = $3; first = 4 }
            if (count !~ /^[1-9][0-9]*$/) bad("expected a count from 1, got " count)
            line = $1 " " $2 " " count
            for (i = first; i <= NF; i++) {
                if ($i !~ /^[a-z_]+=[^;&|<>`$"\047\\]*$/) bad("expected setting=value, got " $i)
                line = line " " $i
            }
            if ($1 == "master") { masters += count }
            if ($1 == "server") { servers += count }
            print line
        }
        END {
            if (failed) exit 2
            if (masters != 1) { print file ": expected one master, got " masters + 0 >"/dev/stderr"; exit 2 }
            if (!servers) { print file ": no server" >"/dev/stderr"; exit 2 }
        }' "$HOSTS"
}

read_inventory() {  # fills LINES and ALL, the hosts, each once
    local text
    text=$(inventory) || exit 2
    mapfile -t LINES <<<"$text"
    mapfile -t ALL < <(awk '!seen[$2]++ { print $2 }' <<<"$text")
}

folder() { printf '%s' "${REMOTE//%h/$1}"; }        # the folder on host $1

on() {              # runs a command on a host, in its folder; input passes through
    local host=$1
    shift
    # shellcheck disable=SC2086
    $RSH "$host" "cd $(quoted "$(folder "$host")") && $*"
}

quoted() {          # words that a shell at the other end reads as they are
    local word out=
    for word in "$@"; do
        out+="'${word//\'/\'\\\'\'}' "
    done
    printf '%s' "${out% }"
}

colour() {          # of the n-th host, on a terminal
    if [ -t 1 ]; then printf '\033[%dm' $((31 + $1 % 6)); fi
}

prefixed() {        # puts a coloured host before every line
    local begin=$1 host=$2 end=
    [ -z "$begin" ] || end=$'\033[0m'
    sed -u "s|^|$begin$host$end: |"
}

on_all() {          # on_all FUNCTION [WORD...]: FUNCTION HOST WORD... for each host at once
    local work=$1 host n=0 failed=0 colour
    shift
    local -a jobs=()
    for host in "${ALL[@]}"; do
        colour=$(colour "$n")
        { "$work" "$host" "$@" 2>&1 | prefixed "$colour" "$host"; } &
        jobs+=("$!:$host")
        n=$((n + 1))
    done
    for job in "${jobs[@]}"; do
        wait "${job%%:*}" || {
            failed=$((failed + 1))
            printf '%s: failed on %s, see above\n' "$(basename "$0")" "${job#*:}" >&2
        }
    done
    [ "$failed" = 0 ] || { printf '%s: %d of %d hosts failed\n' "$(basename "$0")" "$failed" "${#ALL[@]}" >&2; return 1; }
}
