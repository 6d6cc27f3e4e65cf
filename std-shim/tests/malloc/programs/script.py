# Threads, children, data and blocks by hand, with output that does not depend on the heap.
import collections, ctypes, gc, hashlib, json, multiprocessing, os, pickle, re, subprocess, sys, threading, zlib


def words(seed, count):
    for _ in range(count):
        seed = seed * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        yield "w" * (seed >> 60) + str(seed >> 40)


def work(seed, results):
    counts = collections.Counter(w[-3:] for w in words(seed, 20000))
    text = json.dumps({"counts": counts, "list": [list(words(seed, 50)) for _ in range(40)]}, sort_keys=True)
    assert json.loads(text) == json.loads(json.dumps(json.loads(text)))
    tokens = re.findall(r'"(w*)([0-9]{3,})"', text)
    packed = zlib.compress(pickle.dumps(tokens))
    assert pickle.loads(zlib.decompress(packed)) == tokens
    results[seed] = hashlib.sha256(repr(tokens).encode()).hexdigest()


def child(seed):
    results = {}
    work(seed, results)
    return results[seed]


if __name__ == "__main__":
    results = {}
    threads = [threading.Thread(target=work, args=(i, results)) for i in range(6)]
    [t.start() for t in threads]
    for i in range(5):
        print(subprocess.run(["sh", "-c", f"echo child {i}"], capture_output=True, text=True).stdout, end="")
    pid = os.fork()
    if pid == 0:
        data = [bytes(1000) * i for i in range(500)]
        os._exit(len(data) % 256)
    print("forked", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    [t.join() for t in threads]
    print(sorted(results.items()))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(child, range(3)))
    ring = []
    for i in range(2000):
        ring.append([ring[-1:], bytearray(i * 10)])
    del ring
    gc.collect()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.malloc.restype = ctypes.c_void_p
    blocks = [libc.malloc(ctypes.c_size_t(n)) for n in range(0, 100000, 500)]
    [libc.free(ctypes.c_void_p(b)) for b in blocks]
    try:
        b"x" * (1 << 62)
    except MemoryError:
        print("MemoryError")
