"""Products whose rows have the same bits in every batch: `api`; `panels` packs a matrix."""
