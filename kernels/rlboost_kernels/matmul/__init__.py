"""Products whose rows have the same bits in every batch: `matmul_api`; `panels` packs a matrix."""
