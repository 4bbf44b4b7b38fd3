"""A worker without torch: it does what the trial's options say, so that the guards meet real processes."""

import json
import os
import signal
import sys
import time


def main() -> None:
    arguments = sys.argv[1:]
    out = os.fdopen(int(arguments[arguments.index("--results") + 1]), "w")
    facts = json.loads(os.environ.get("STUB_FACTS", "{}"))
    facts = {"name": "stub", "total_bytes": 100 << 30, "free_bytes": 99 << 30, "integrated": False, **facts}

    def say(event, **values):
        out.write(json.dumps({"event": event, **values}) + "\n")
        out.flush()

    say("ready")
    for line in sys.stdin:
        message = json.loads(line)
        if message["do"] == "quit":
            return
        if message["do"] == "open":
            if os.environ.get("STUB_NO_DEVICE"):
                say("failed", reason="RuntimeError: No CUDA GPUs are available")
                return
            say("open", facts=facts, environment={"gpu": facts["name"], "torch": "0", "date": "2026-01-01"})
            continue
        act(message["trial"]["options"], message, say)
        return


def act(options, message, say):
    kind = options.get("stub", "ok")
    if "ran" in options:
        with open(options["ran"], "a") as file:
            file.write(f"{message['trial']['label']} {time.monotonic()}\n")
    peak = options.get("peak", 1 << 30)
    if message["trial"]["job"] and options.get("per_batch"):
        peak = options["per_batch"] * message["trial"]["job"]["micro_batch"]
    measured = {"peak_allocated_bytes": peak, "peak_reserved_bytes": peak + 512}
    measured |= {name: message["trial"][name] for name in ("passes", "untimed_because")}
    if options.get("per_batch") and peak > message["cap_bytes"]:
        kind = "oom"
    match kind:
        case "ok":
            time.sleep(options.get("seconds", 0))
            say("done", outcome="ok", reason=None, measured=measured)
        case "oom":
            say("done", outcome="oom", reason="OutOfMemoryError: CUDA out of memory", measured=None)
        case "crash":
            print("Segmentation fault imminent", file=sys.stderr)
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGSEGV)
        case "killed":
            say("part", measured=measured)
            os.kill(os.getpid(), signal.SIGKILL)
        case "silent":
            sys.exit(7)
        case "hang":
            time.sleep(600)
        case "eat":
            # Memory of the machine vanishes: the file stands in for /proc/meminfo.
            for step in range(200):
                left = max(0, 40 - step) << 20
                with open(options["meminfo"] + ".new", "w") as file:
                    file.write(f"MemTotal: {64 << 20} kB\nMemAvailable: {left} kB\n")
                # Written in place: the watchdog holds the file open, as it does the kernel's.
                with open(options["meminfo"], "r+") as file:
                    file.write(f"MemTotal: {64 << 20:>12} kB\nMemAvailable: {left:>12} kB\n")
                time.sleep(0.02)
            say("done", outcome="ok", reason=None, measured=measured)


if __name__ == "__main__":
    main()
