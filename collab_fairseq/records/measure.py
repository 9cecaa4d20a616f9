"""Run a command and note how long it took and how much memory it used.

    python -m collab_fairseq.records.measure usage.jsonl fairseq-train ...

Appends one line of JSON to the file: wall time in seconds, the largest resident memory of the command and the programs
it waited for in bytes, and its exit status, which is also this program's. A run in several parts leaves one line for
each.
"""

import json
import resource
import signal
import subprocess
import sys
import time


def main(file: str, *command: str) -> int:
    """Run the command; returns its exit status (128 + n where signal n ended it)."""
    start = time.monotonic()
    try:
        child = subprocess.Popen(command)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        return 127
    # the command ends itself on Ctrl-C, or passes it on; we only wait, to note what it used
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: child.terminate())
    status = child.wait()
    unit = 1 if sys.platform == "darwin" else 1024
    usage = {
        "wall_seconds": round(time.monotonic() - start, 3),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit,
        "exit_status": status,
    }
    with open(file, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(usage) + "\n")
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
