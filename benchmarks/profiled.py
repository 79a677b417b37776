"""Runs a module under cProfile and writes the profile when it ends.

python -m benchmarks.profiled OUT.prof -m MODULE ARGUMENTS...
"""

from __future__ import annotations

import cProfile
import runpy
import sys
import threading


def main() -> None:
    """Take our own arguments away and run the module as `__main__`."""
    out, _, module, *rest = sys.argv[1:]
    sys.argv = [module, *rest]
    profile = cProfile.Profile()
    # Threads (the disk writer, kazoo) are left out: one profile cannot hold the clocks of several.
    assert threading.current_thread() is threading.main_thread()
    try:
        profile.runcall(runpy.run_module, module, run_name="__main__", alter_sys=True)
    finally:
        profile.dump_stats(out)


if __name__ == "__main__":
    main()
