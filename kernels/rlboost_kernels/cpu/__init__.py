"""C++ kernels for CPUs: `build` compiles the library, `library` loads it, `calls` calls it."""
