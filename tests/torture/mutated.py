"""`python -m tests.torture.mutated BUG MODULE …`: runs a module of the product in a process that has a planted bug."""

import runpy
import sys

from tests.torture.bugs import PLANTED

if __name__ == "__main__":
    bug, module = sys.argv[1:3]
    sys.argv = [module, *sys.argv[3:]]
    for planted in PLANTED:
        if planted.name == bug:
            change = planted.worker if module == "fencepost.testing.torture.worker" else planted.gateway
            if change is not None:
                change()
    runpy.run_module(module, run_name="__main__")
