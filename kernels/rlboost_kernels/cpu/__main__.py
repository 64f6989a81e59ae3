"""Build the library of the `cpu` implementation in place: python -m rlboost_kernels.cpu"""

import sys

from rlboost_kernels.cpu.build import LIBRARY, CannotBuild, build

if __name__ == "__main__":
    try:
        build()
    except CannotBuild as error:
        sys.exit(f"cannot build {LIBRARY.name}: {error}")
    print(f"built {LIBRARY}")
