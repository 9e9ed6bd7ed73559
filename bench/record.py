"""The files under bench/results: figures with the machine that they are from."""
import datetime
import json
import os
import platform
import statistics
import subprocess


def figure(name, values, unit, limit=None):
    """The median of some values, with their spread."""
    made = {"name": name, "value": statistics.median(values), "unit": unit, "min": min(values), "max": max(values), "limit": limit}
    return {key: round(part, 4) if isinstance(part, float) else part for key, part in made.items() if part is not None}


def rate(lines):
    """Tokens a second over lines of `paceline bench --json`."""
    return sum(line["n"] for line in lines) / sum(line["decode_s"] for line in lines)


def processor():
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def save(path, command, figures, commit=""):
    """Writes a result. `command` says how it was made; the commit is the checkout's if none is given."""
    commit = commit or subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    result = {"date": datetime.date.today().isoformat(), "machine": "%d cores, %s" % (os.cpu_count(), processor()), "commit": commit,
              "command": command, "figures": figures}
    with open(path, "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
