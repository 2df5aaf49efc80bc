"""First messages that arrive at once, in a process of its own: types that msgspec has not met yet cannot be unmet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
THREADS = 16

FIRST_MESSAGES = f"""
import threading
from coordinator.api import signed_messages as m

BEAT = (b'{{"job_id":"one","launch":1,"seq":1,"url":"u","sidecar_pid":2,"shim":{{"trainer":"running","gpu_ids":["a"]}},'
        b'"progress":{{"iterations":3}},"gpus":[{{"gpu_id":"a"}}],"usage":{{"memory":4}},'
        b'"checkpoint":{{"name":"c","step":3,"generation":1}},"lost":{{"epochs":1.0}}}}')
NODE = b'{{"boot":"b","seq":1,"gpus":[{{"gpu_id":"a","gpu_type":"V100"}}],"jobs":{{"jobs":1,"pc":0,"wc":0,"cc":1}}}}'
barrier, read = threading.Barrier({THREADS}), []

def first(number):
    barrier.wait()
    read.append(m._decode(BEAT, m.HEARTBEAT).gpus[0].gpu_id if number % 2 else m._decode(NODE, m.REPORT).gpus[0].gpu_id)

threads = [threading.Thread(target=first, args=(n,)) for n in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("".join(read))
"""

DECODERS = """
import msgspec
import threading

seen = []
real = msgspec.json.Decoder

class Recorded:
    def __init__(self, kind):
        seen.append((kind.__name__, threading.current_thread() is threading.main_thread()))

msgspec.json.Decoder = Recorded
from coordinator.api import signed_messages
print(sorted(seen))
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
    return done.stdout.strip()


def test_first_heartbeats_and_node_reports_that_arrive_at_once_are_all_read() -> None:
    assert run(FIRST_MESSAGES) == "a" * THREADS


def test_the_decoders_of_messages_are_made_as_the_module_is_imported() -> None:
    expected = [("Heartbeat", True), ("NodeReport", True), ("OperatorRequest", True)]
    assert run(DECODERS) == str(expected)
