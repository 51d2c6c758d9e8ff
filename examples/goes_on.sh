#!/bin/sh
# Trains on the hosts that answer. When one is lost, it begins again on the others, from the last checkpoint in DIR, a
# folder that all hosts see. It does not copy the program and the data to the hosts.
#
# HOSTS='one two' PROGRAM='target/release/concise --backend mpi' sh goes_on.sh DIR OPTIONS…
dir=$1 asked= job= before=
shift
trap 'asked=yes; [ -z "$job" ] || kill -USR1 $job' INT TERM HUP USR1 # mpirun would not wait for a checkpoint
while :; do
    hosts=
    for host in $HOSTS; do
        ssh -n -oBatchMode=yes -oConnectTimeout=5 "$host" true && hosts=$hosts${hosts:+,}$host:${SLOTS:-1}
    done
    now="$hosts $(cksum "$dir/checkpoint.safetensors" 2> /dev/null)"
    [ "$now" != "$before" ] || exit 1 # same hosts, same checkpoint: it would fail again
    before=$now
    if ls "$dir"/checkpoint*.safetensors > /dev/null 2>&1; then
        start="--resume $dir"
    else
        start="--out $dir --overwrite $*"
    fi
    [ -z "$asked" ] || exit 130
    setsid mpirun -H "$hosts" --bind-to none --mca oob_tcp_keepalive_time 5 --mca oob_tcp_keepalive_intvl 2 \
        --mca oob_tcp_keepalive_probes 3 $PROGRAM $start &
    job=$!
    [ -z "$asked" ] || kill -USR1 $job
    while :; do
        wait $job
        status=$?
        kill -0 $job 2> /dev/null || break # else a signal has ended the wait
    done
    job=
    case $status in 0 | 2 | 130) exit $status ;; esac
    [ -z "$asked" ] || exit 130
done
