"""Build the library of the `cpu` implementation in place: python -m rlboost_kernels.cpu"""

import argparse
import sys
from functools import partial

from rlboost_kernels.cpu.build import CannotBuild, build

if __name__ == "__main__":
    argparse.ArgumentParser(prog="rlboost-kernels build", description=__doc__).parse_args()
    try:
        library = build(report=partial(print, flush=True))
    except CannotBuild as error:
        sys.exit(f"cannot build the library of the cpu implementation: {error}")
    print(f"built {library}")
