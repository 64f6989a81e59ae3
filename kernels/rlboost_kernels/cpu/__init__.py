"""C++ kernels for CPUs: `build` compiles the library, `library` loads it, `ffi_calls` calls it."""
