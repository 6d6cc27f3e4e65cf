# A server on a socket, its benchmark, and what it then holds.
set -e
redis-server --port 0 --unixsocket socket --save '' --appendonly no --logfile log --dir . > /dev/null &
server=$!
trap 'kill $server 2> /dev/null || true' EXIT
for i in $(seq 1 500); do
    [ -S socket ] && redis-cli -s socket ping > /dev/null 2>&1 && break
    sleep 0.02
done
redis-benchmark -s socket -q -n 5000 -c 20 -r 1000 -d 300 -t set,lpush,sadd,hset,zadd,lrange_100 > /dev/null
redis-cli -s socket eval "for i = 1, 5000 do redis.call('set', 'k' .. i, string.rep('v', i % 700)) redis.call('append', 'long', i) end return redis.call('strlen', 'long')" 0
for i in $(seq 1 5); do redis-cli -s socket get k$((i * 777)) | cksum; done
redis-cli -s socket llen mylist
redis-cli -s socket flushall
redis-cli -s socket dbsize
redis-cli -s socket shutdown nosave || true
wait $server
