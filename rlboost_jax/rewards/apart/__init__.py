"""A program and its test in two processes: plain values, the program's side, the test's side."""
