"""A child process that speaks the launcher's protocol and behaves as it is told.

Behaviour comes from the configuration (`behaviour`) or, where that is a real one, from FAKE_PARTS in the environment:
"tokenizer=deaf runner=fail". Notices are recorded as lines of the file FAKE_RECORD.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from wire.child import Failed, LauncherGone, Notice, Progress, Shutdown, Started, adopt


def main() -> None:
    config, child = adopt(dict[str, Any], is_killed_with_launcher=False)
    role = config.get("role") or role_of(config)
    behaviours = dict(pair.split("=") for pair in os.environ.get("FAKE_PARTS", "").split())
    behaviour = config.get("behaviour") or behaviours.get(role, "ok")
    match behaviour:
        case "fail":
            child.tell(Failed(message="port 30000 is taken; choose another with --port"))
            sys.exit(1)
        case "die":
            print("my last words", file=sys.stderr, flush=True)
            sys.exit(3)
        case "hang":
            child.tell(Progress(what="loading weights", done=30, total=272, unit="tensors"))
            for_ever()
        case "babble":
            os.write(child._status_fd, b"not a status\n")
            for_ever()
    is_over = threading.Event()

    def on_notice(notice: Notice) -> None:
        record(f"{role} {type(notice).__name__}")
        is_heard = behaviour != "deaf" and not (behaviour == "busy" and isinstance(notice, Shutdown))
        if is_heard and not isinstance(notice, LauncherGone):
            is_over.set()

    child.watch(on_notice, run_dir=config["run_dir"])
    print(f"{role} says hello", flush=True)
    print(f"12:00:00 {role} INFO all is well", flush=True)
    child.tell(Progress(what="loading weights", done=272, total=272, unit="tensors"))
    facts: dict[str, str | int | float] = {"pid": os.getpid()}
    if role == "tokenizer":
        facts["address"] = "http://127.0.0.1:31000"
    if behaviour == "parent":
        facts["child"] = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid
    child.tell(Started(facts=facts))
    is_over.wait()
    record(f"{role} exits")
    sys.stdout.flush()
    os._exit(0)


def role_of(config: dict[str, Any]) -> str:
    return "tokenizer" if "tokenizer_dir" in config else "model_runner" if "weights" in config else "scheduler"


def record(line: str) -> None:
    with Path(os.environ["FAKE_RECORD"]).open("a") as file:
        file.write(line + "\n")


def for_ever() -> NoReturn:
    while True:
        threading.Event().wait()


if __name__ == "__main__":
    main()
