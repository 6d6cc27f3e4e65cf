#!/usr/bin/env python3
"""Tests `run` over programs that do what a GPU's do at their worst: hang, ignore signals, leave processes behind.

    python3 cuda/hardware/test_run.py
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent

#: What stands for every program. `--probe NAME` and `--exact NAME` do what the name says.
PROGRAM = f"""\
#!{sys.executable}
import os, signal, subprocess, sys, time
NAMES = {{names}}
if "--list" in sys.argv:
    print("\\n".join(NAMES))
    sys.exit()
if "--bench" in sys.argv:
    print("| live | contender | ns | x bare |\\n| --- | ---: | ---: | ---: |\\n| 100 | bare | 70.0 | 1.00 |\\n")
    print("|  | large blocks | median | longest |\\n| --- | ---: | ---: | ---: |\\n| pages | 0 | 0.1 | 9.0 |")
    sys.exit()
name = sys.argv[-1]
if "--exact" in sys.argv:
    name = sys.argv[sys.argv.index("--exact") + 1]
if name == "modules::a_kernel_runs_over_its_grid":
    sys.exit(1 if os.path.exists({{folder!r}} + "/unwell") else 0)
if "ignores" in name:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "grandchild" in name:
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
if "hangs" in name:
    if "once" in name:
        open({{folder!r}} + "/unwell", "w")
    while True:
        time.sleep(1000)
if "at-first" in name and not os.path.exists({{folder!r}} + "/tried"):
    open({{folder!r}} + "/tried", "w")
    sys.exit("too little memory beside others")
if "fails" in name:
    sys.exit("what went wrong")
time.sleep(0.05)
if "falls" in name:
    sys.exit(print(f"test {{{{name}}}} ... answer: what {{{{name}}}} asks | no | 0 | FALLS: it") or "it is not so")
print(f"answer: what {{{{name}}}} asks | yes | 1 | holds: it")
"""


#: Runs a script that gets a signal before one of its calls that change files.
KILLED = """\
import os, runpy, sys
number, left = int(sys.argv[1]), int(sys.argv[2])
def called(frame, event, function):
    global left
    if event == "c_call" and function.__name__ in ("write", "flush", "fsync", "rename"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)
sys.argv[:3] = []
sys.setprofile(called)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Archive:
    """A folder as `carry.sh` packs it, with such programs."""

    def __init__(self, names):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        for folder in ("bin", "lists", "traces", "python"):
            (self.folder / folder).mkdir()
        shutil.copy(HERE / "run", self.folder / "run")
        (self.folder / "packed.txt").write_text("commit of a test\n")
        program = PROGRAM.format(names=names, folder=str(self.folder))
        for name in ("driver_calls", "host_pairs", "larder", "test-all", "test-conformance"):
            (self.folder / "bin" / name).write_text(program)
            (self.folder / "bin" / name).chmod(0o755)
        for name in ("all", "conformance"):
            (self.folder / "lists" / name).write_text("")
        self.out = self.folder / "out"

    def limits(self, seconds):
        """Parts have so many seconds."""
        path = self.folder / "run"
        text = path.read_text()
        changed = text.replace("def probe(name, limit, **environment):\n", f"def probe(name, limit, **environment):\n    limit = {seconds}\n")
        assert changed != text
        path.write_text(changed)

    def start(self, *words, signal=0, at=0):
        """It gets the signal where it writes, flushes or renames for the `at`th time."""
        command = [sys.executable, "-c", KILLED, str(int(signal)), str(at), str(self.folder / "run"), "stand-in"]
        return subprocess.Popen(
            [*command, "--out", str(self.out), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words, **killed):
        process = self.start(*words, **killed)
        said, _ = process.communicate()
        return process.returncode, said

    def answers(self):
        return (self.out / "answers.txt").read_text()

    def answered(self, names):
        """How many parts' answers are in the report, which is whole."""
        answers = self.answers()
        assert answers.splitlines()[-1].startswith("parts that are left"), answers
        return sum(f"what {name} asks" in answers for name in names)

    def left_running(self):
        """Processes that name this folder."""
        left = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    said = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if str(self.folder).encode() in said:
                    left.append(entry.name)
        return left


class Tests(unittest.TestCase):
    def archive(self, *names):
        archive = Archive(names)
        self.addCleanup(shutil.rmtree, archive.folder)
        return archive

    def test_four_files_come_of_a_run_and_a_failed_part_is_a_line(self):
        archive = self.archive("unmap.good", "unmap.fails", "times.good")
        code, _ = archive.run("--only", "unmap,times")
        self.assertEqual(code, 1)
        self.assertEqual(
            sorted(path.name for path in archive.out.iterdir()),
            ["answers.txt", "failures.txt", "logs.tar.gz", "table.txt"],
        )
        self.assertIn("what unmap.good asks | yes | 1 | holds: it", archive.answers())
        self.assertIn("unmap.fails | no answer: ended with 1", archive.answers())
        pairs = [line for line in archive.answers().splitlines() if line.startswith("host pairs")]
        self.assertEqual(pairs, ["host pairs of 100 live, bare | 1.00 x bare | 70.0 ns a pair | -"])
        self.assertIn("what went wrong", (archive.out / "failures.txt").read_text())
        with tarfile.open(archive.out / "logs.tar.gz") as logs:
            self.assertIn("logs/unmap.good.log", logs.getnames())

    def test_what_hangs_costs_its_limit_and_the_grace_and_leaves_nobody(self):
        archive = self.archive("unmap.hangs-ignores-grandchild", "unmap.hangs", "unmap.grandchild", "unmap.good")
        archive.limits(2)
        code, _ = archive.run("--only", "unmap")
        self.assertEqual(code, 1)
        self.assertIn("unmap.hangs-ignores-grandchild | no answer: out of time", archive.answers())
        self.assertIn("unmap.hangs | no answer: out of time", archive.answers())
        self.assertIn("what unmap.good asks", archive.answers())
        self.assertEqual(archive.left_running(), [])

    def test_a_device_that_is_unwell_ends_the_run(self):
        archive = self.archive("unmap.hangs-once", "unmap.good")
        archive.limits(1)
        code, said = archive.run("--only", "unmap")
        self.assertEqual(code, 3)
        self.assertIn("NOT WELL", archive.answers())
        self.assertNotIn("what unmap.good asks", archive.answers())
        (archive.folder / "unwell").unlink()
        code, said = archive.run("--only", "unmap")
        self.assertEqual(code, 1, said)
        self.assertIn("what unmap.good asks", archive.answers())

    def test_a_run_that_is_killed_at_any_write_keeps_what_was_done_and_goes_on(self):
        names = [f"unmap.{number}" for number in range(4)]
        for number in (signal.SIGKILL, signal.SIGTERM):
            archive = self.archive(*names)
            # Some parts are done before all else.
            archive.run("--only", "unmap", signal=number, at=20)
            done, at, code = 1, 0, None
            while code != 0:
                at += 1
                code, said = archive.run("--only", "unmap", signal=number, at=at)
                reported = archive.answered(names)
                # What is kept is in the report of the next run, of whatever group.
                archive.run("--only", "machine")
                kept = archive.answered(names)
                self.assertGreaterEqual(reported, done, f"write {at}: {said}")
                self.assertGreaterEqual(kept, reported, f"write {at}: {said}")
                done = kept
            self.assertGreater(at, len(names))
            self.assertEqual(done, len(names))
            self.assertEqual(archive.left_running(), [])

    def test_a_test_that_fails_beside_others_is_run_again_alone(self):
        archive = self.archive("unmap.good")
        (archive.folder / "lists" / "conformance").write_text("one\nat-first\ntwo\nfails\n")
        code, said = archive.run("--only", "conformance")
        self.assertEqual(code, 1, said)
        self.assertIn("conformance tests | 3 passed, 0 skipped, 1 failed, 0 timeout | 4 of 4 | FALLS", archive.answers())

    def test_aliases_and_captures_run_first_and_once_and_what_fails_is_what_falls(self):
        archive = self.archive()
        early = ["virtual_memory::aliases::good", "virtual_memory::aliases::falls", "capturing::good"]
        (archive.folder / "lists" / "conformance").write_text("\n".join([*early, "streams::good"]))
        code, said = archive.run("--only", "conformance,captures,alias")
        self.assertEqual(code, 1, said)
        table = (archive.out / "table.txt").read_text().split("conformance.")[1:]
        self.assertEqual([line.split()[0] for line in table], [*early, "streams::good"])
        answers = archive.answers().splitlines()
        self.assertEqual(answers[1], "alias tests | 1 passed, 0 skipped, 1 failed, 0 timeout | 2 of 2 | FALLS: the stand-in behaves as the driver does")
        self.assertEqual(answers[2], "what virtual_memory::aliases::falls asks | no | 0 | FALLS: it")
        self.assertIn("what capturing::good asks | yes | 1 | holds: it", answers)

    def test_what_did_not_pass_is_run_anew_only_if_that_is_said_or_the_archive_is_another(self):
        archive = self.archive("unmap.at-first", "unmap.good")
        archive.run("--only", "unmap")
        archive.run("--only", "unmap")
        self.assertIn("unmap.at-first | no answer", archive.answers())
        code, _ = archive.run("--only", "unmap", "--again")
        self.assertEqual(code, 0)
        self.assertIn("what unmap.at-first asks", archive.answers())
        # Other groups do not take the answers away.
        archive.run("--only", "machine")
        self.assertIn("what unmap.at-first asks", archive.answers())
        (archive.folder / "packed.txt").write_text("commit of another test\n")
        archive.run("--only", "machine")
        self.assertNotIn("what unmap.at-first asks", archive.answers())

    def test_two_runs_of_one_folder_are_not_at_work_at_once(self):
        archive = self.archive("unmap.hangs", "unmap.good")
        first = archive.start("--only", "unmap")
        while not (archive.folder / "state-stand-in" / "logs" / "unmap.hangs.log").exists():
            time.sleep(0.01)
        code, said = archive.run("--only", "unmap")
        self.assertNotEqual(code, 0)
        self.assertIn("another run is at work", said)
        self.assertIsNone(first.poll())
        first.terminate()
        first.communicate()

    def test_what_cannot_be_done_is_said_in_a_line(self):
        archive = self.archive("unmap.good")
        for words, expected in [
            (["--only", "unmap, nothing"], "no group is named nothing"),
            (["--minutes", "nan"], "--minutes wants a number above 0"),
            (["--out", "/proc/nothing"], "--out /proc/nothing cannot be made"),
        ]:
            code, said = archive.run(*words)
            self.assertNotEqual(code, 0)
            self.assertIn(expected, said)
            self.assertNotIn("Traceback", said)

    def test_a_run_without_time_leaves_parts_and_says_so(self):
        archive = self.archive(*(f"times.hangs-{number}" for number in range(3)))
        code, said = archive.run("--only", "times", "--minutes", "0.4")
        self.assertEqual(code, 75, said)
        self.assertIn("times.hangs-0 times.hangs-1 times.hangs-2", archive.answers().splitlines()[-1])
        self.assertEqual(archive.left_running(), [])


if __name__ == "__main__":
    print(textwrap.dedent(__doc__).splitlines()[0])
    unittest.main()
