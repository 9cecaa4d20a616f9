"""Time and memory of a command, for records."""

import contextlib
import json
import math
import os
import time
from typing import IO, Any, Dict


class Usage:
    """Measurements of a command, as two JSON lines in a file: one from its start, `{"log_from", …}`, and one that is
    replaced until its end, `{"wall_seconds", "train_seconds", "log_to", "peak_memory_bytes", "exit_status"}`.

    `log_from` and `log_to` are the sizes of the log in bytes before and after the command. `train_seconds` excludes the
    time before its first output, in which it imports packages. The last two are added at its end; the peak of memory
    includes children that it waited for. If this process is killed, the line is at most `SECONDS` old.
    """

    SECONDS = 0.5
    WIDTH = 160  # of the second line, so that it is replaced by a single write

    def __init__(self, file: IO[bytes], log: IO[bytes], about: Dict[str, Any]) -> None:
        self.file, self.log, self.log_from = file, log, log.tell()
        self.begin = self.first_output = time.monotonic()
        text = json.dumps({"log_from": self.log_from, **about}) + "\n"
        with contextlib.suppress(OSError):  # of an empty file
            self.file.seek(-1, os.SEEK_END)
        if self.file.read() not in (b"", b"\n"):
            text = f"\n{text}"  # the last line is incomplete
        self.file.write(text.encode())
        self.position, self.written = self.file.tell(), -math.inf

    def write(self, **more: Any) -> None:
        """Replace the second line, at most every `SECONDS` unless there is more to write."""
        now, log_to = time.monotonic(), self.log.tell()
        if log_to == self.log_from:
            self.first_output = now
        if not more and now - self.written < self.SECONDS:
            return
        self.written = now
        seconds = {"wall_seconds": round(now - self.begin, 3), "train_seconds": round(now - self.first_output, 3)}
        line = json.dumps({**seconds, "log_to": log_to, **more}).ljust(self.WIDTH - 1) + "\n"
        with contextlib.suppress(OSError):  # a measurement must not end training
            self.file.seek(self.position)
            self.file.write(line.encode())
