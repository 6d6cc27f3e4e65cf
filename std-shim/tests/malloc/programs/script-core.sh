# A debugger writes the core of a Python with 20 MB of objects. All of them are in the file, which is not much longer.
set -e
unset DEBUGINFOD_URLS
# A name may stand for a script that starts it.
python=$(python3 -c 'import sys; print(sys.executable)')
cat > program.py <<'PYTHON'
import os, signal
objects = [b'object-%05d' % i + bytes([i % 255 + 1]) * 1000 for i in range(20000)]
os.kill(os.getpid(), signal.SIGUSR1)
PYTHON
ulimit -f 400000
gdb -nx -batch -ex run -ex 'generate-core-file core' -ex kill --args "$python" program.py > log 2>&1 < /dev/null || true
[ -s core ] || { cat log >&2; exit 1; }
LC_ALL=C grep -ao 'object-[0-9]\{5\}' core | sort -u | wc -l
[ "$(stat -c %s core)" -lt 200000000 ] && echo 'less than 200 MB'
