# A repository with some history: made, packed, cloned, looked at.
set -e
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 HOME=$PWD
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
git init -q -b main one
cd one
for i in $(seq 1 12); do
    for j in $(seq 1 10); do seq $((i * j)) $((i * j * 7 + 300)) > "file$j"; done
    mkdir -p "folder$((i % 4))"
    cp file3 "folder$((i % 4))/copy$i"
    git add .
    export GIT_AUTHOR_DATE="$((1600000000 + i)) +0000" GIT_COMMITTER_DATE="$((1600000000 + i)) +0000"
    git commit -q -m "change $i"
done
git repack -q -a -d -f --depth=50 --window=50 --threads=2
git gc -q --prune=now
cd ..
git clone -q --no-local one two
cd two
git fsck --no-progress
git log --stat --format='%H %s'
git diff HEAD~5 --shortstat
git blame file2 | cksum
git count-objects
