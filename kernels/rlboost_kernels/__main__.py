"""`python -m rlboost_kernels COMMAND`: the program `rlboost-kernels`, where its script is not on
the path."""

import sys

from rlboost_kernels.kernel_commands import main

if __name__ == "__main__":
    sys.exit(main())
