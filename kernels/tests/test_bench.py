"""The benchmark prints one line per shape and implementation."""

import subprocess
import sys

from rlboost_kernels import bench


def test_prints_every_implementation_of_a_shape(capsys):
    bench.main(["--rounds=1", "--only=3-32"])
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[5] for line in lines] == ["reference", "xla"]
    assert all(line.split()[8] == "0.56" for line in lines)  # MB of keys and values
    assert lines[0].endswith("1.00 x")


def test_imports_jax_and_numpy_only():
    """Of what is installed here, importing the package brings in no other distribution."""
    program = (
        "import sys, jax, jax.numpy; before = set(sys.modules); import rlboost_kernels; "
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert set(out.stdout.split()) <= {"rlboost_kernels", "jax", "numpy"}
