"""The benchmark prints one line per shape and implementation."""

import subprocess
import sys

from rlboost_kernels import available_implementations, bench


def test_prints_every_implementation_of_a_shape(capsys):
    bench.main(["--rounds=1", "--only=3-32", "--gigabytes=0.01"])
    printed = capsys.readouterr().out
    _, *lines = printed[printed.index("shape  ") :].splitlines()
    legend = printed[: printed.index("shape  ")]
    assert all(column in legend for column in ("median", "KV", "of read", "to xla", "to torch"))
    assert [line.split()[6] for line in lines] == list(available_implementations()[1:])
    assert all(line.split()[9] == "0.56" for line in lines)  # MB of keys and values
    assert lines[0].rstrip().endswith("1.0 x")  # xla against itself


def test_writing_and_calling_have_a_line_each():
    assert "bfloat16 pool of 67 MB, xla:" in bench.update_row("bfloat16", "xla", rounds=1)
    assert "µs a call" in bench.overhead_row(rounds=1)


def test_imports_jax_and_numpy_only():
    """Importing the package imports no other distribution that is installed here."""
    program = (
        "import sys, jax, jax.numpy; before = set(sys.modules); import rlboost_kernels; "
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    others = set(out.stdout.split()) - set(sys.stdlib_module_names)
    assert others <= {"rlboost_kernels", "jax", "numpy"}
