# A server on a loopback port, logins by key as the user who runs this, and data through the connection.
set -e -o pipefail
sshd=$(PATH=$PATH:/usr/sbin:/sbin command -v sshd)
# The server of a privileged user wants this folder.
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N '' -f host
ssh-keygen -q -t ed25519 -N '' -f user
port=$((20000 + $$ % 20000))
for attempt in $(seq 1 20); do
    port=$((port + 1))
    : > log
    "$sshd" -D -e -f /dev/null -h "$PWD/host" -p $port -o ListenAddress=127.0.0.1 -o PidFile=none -o UsePAM=no \
        -o StrictModes=no -o PermitRootLogin=prohibit-password -o AuthorizedKeysFile="$PWD/user.pub" 2> log &
    server=$!
    trap 'kill $server 2> /dev/null || true' EXIT
    # A port that is taken ends it.
    until grep -q 'Server listening' log || ! kill -0 $server 2> /dev/null; do sleep 0.02; done
    ! kill -0 $server 2> /dev/null || break
done
login() {
    ssh -F /dev/null -i user -p $port -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
        -o LogLevel=ERROR 127.0.0.1 "$@" || { cat log >&2; exit 1; }
}
for i in 1 2 3; do login "echo login $i" < /dev/null; done
seq 1 200000 | login 'cksum'
login 'seq 1 200000' < /dev/null | cksum
